"""Durations, shares and counts as people read them."""

from __future__ import annotations

import pytest

from shared.quantities import count, duration, enumerated, percent, several


@pytest.mark.parametrize(
    ("us", "text"),
    [
        *((0, "0 ms"), (40, "<0.1 ms"), (400, "0.4 ms"), (9_940, "9.9 ms"), (12_300, "12 ms")),
        *((999_400, "999 ms"), (999_600, "1.0 s"), (4_120_000, "4.1 s"), (99_940_000, "99.9 s")),
        *(
            (99_960_000, "100 s"),
            (119_000_000, "119 s"),
            (120_000_000, "2 min"),
            (125e6, "2 min 5 s"),
        ),
    ],
)
def test_a_duration_has_a_unit_that_fits(us, text):
    assert text == duration(us)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        *((0, "0%"), (0.0001, "<0.1%"), (0.004, "0.4%"), (0.0099, "1%"), (0.784, "78%")),
        *((0.996, ">99%"), (1, "100%"), (1.5, "150%"), (-0.2, "0%")),
    ],
)
def test_a_share_is_never_rounded_to_all_or_nothing(share, text):
    assert text == percent(share)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (2.5, "2.5"), (3.04, "3"), (7012, "7,012"), (12.6, "13")]
)
def test_counts_have_their_thousands_apart(number, text):
    assert text == count(number)


def test_one_is_singular_and_none_is_a_word():
    assert ["no tokens", "1 token", "7 tokens", "7,012 tokens"] == [
        several(n, "token") for n in (0, 1, 7, 7012)
    ]


def test_lists_read_as_a_sentence():
    assert ["", "a", "a and b", "a, b and c"] == [enumerated("abc"[:n]) for n in range(4)]
