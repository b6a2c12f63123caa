"""OpenTelemetry's part of a tracestate: what is read, what is written, and that probabilities hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tracer.tracestate import (
    SPACE,
    OtState,
    randomness_of,
    read,
    threshold_of,
    write,
)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("", OtState()),
        ("vendor=1", OtState()),
        ("ot=th:8", OtState(threshold=SPACE // 2)),
        ("ot=th:0", OtState(threshold=0)),
        ("a=b, ot=rv:00000000000001;th:c ,c=d", OtState(threshold=SPACE // 4 * 3, randomness=1)),
        ("ot=th:xyz;rv:1", OtState()),
        ("ot=th:123456789abcdef", OtState()),
        ("ot=th:8;th", OtState()),
        ("robot=th:8", OtState()),
    ],
)
def test_what_a_tracestate_tells(state, told):
    assert told == read(state)


@pytest.mark.parametrize(
    ("state", "threshold", "written"),
    [
        ("", 0, "ot=th:0"),
        ("", SPACE // 2, "ot=th:8"),
        ("", 1, "ot=th:00000000000001"),
        ("a=b", SPACE // 4, "ot=th:4,a=b"),
        ("a=b,ot=rv:00000000000001;th:4;x:y", SPACE // 2, "ot=th:8;rv:00000000000001;x:y,a=b"),
        ("a=b,ot=th:4", None, "a=b"),
        ("ot=th:4;x:y", None, "ot=x:y"),
        ("", None, ""),
    ],
)
def test_what_is_written(state, threshold, written):
    assert written == write(state, threshold)


@settings(max_examples=40)
@given(st.integers(0, SPACE - 1))
def test_a_written_threshold_is_read_again(threshold):
    assert threshold == read(write("a=b,ot=rv:00000000000001", threshold)).threshold


def test_no_more_members_than_w3c_allows():
    state = ",".join(f"k{n}=v" for n in range(32))

    members = write(state, 0).split(",")

    assert 32 == len(members)
    assert ("ot=th:0", "k30=v") == (members[0], members[-1])


@pytest.mark.parametrize(
    ("probability", "threshold"), [(1.0, 0), (0.5, SPACE // 2), (0.0, SPACE), (7.0, 0), (-1, SPACE)]
)
def test_a_probability_is_a_threshold(probability, threshold):
    assert threshold == threshold_of(probability)


def test_randomness_is_the_last_56_bits():
    assert 0x0102030405FFFE == randomness_of(b"\xff" * 9 + bytes.fromhex("0102030405fffe"))
