"""What is said at most once a minute."""

from __future__ import annotations

from shared.quiet import MAX_KEYS, Quiet


def test_the_first_is_said_and_the_next_ones_are_counted_until_a_minute_has_passed():
    now_s = 0.0
    quiet = Quiet(lambda: now_s)

    assert [1, 0, 0] == [quiet.due("a") for _ in range(3)]
    assert 1 == quiet.due("b")
    now_s = 59.9
    assert 0 == quiet.due("a")
    now_s = 60.0
    assert 4 == quiet.due("a")
    assert 0 == quiet.due("a")


def test_its_memory_is_bounded():
    quiet = Quiet(lambda: 0.0)

    for number in range(10 * MAX_KEYS):
        assert 1 == quiet.due(str(number))

    assert len(quiet._said) <= MAX_KEYS
