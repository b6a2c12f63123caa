"""The short memory keeps to its bounds and forgets in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.engine.recall import Recall


def test_remembers_until_its_age_is_over():
    recall: Recall[str] = Recall(max_entries=2, max_age_s=10.0)

    recall.put("a", "x", now=0.0)

    assert recall.get("a", now=10.0) == "x"
    assert recall.get("a", now=10.1) is None


def test_the_oldest_goes_when_it_is_full():
    recall: Recall[str] = Recall(max_entries=2, max_age_s=10.0)

    for key in ("a", "b", "c"):
        recall.put(key, key, now=0.0)

    assert [recall.get(key, now=0.0) for key in ("a", "b", "c")] == [None, "b", "c"]


def test_a_second_put_renews():
    recall: Recall[str] = Recall(max_entries=2, max_age_s=10.0)

    for key in ("a", "b", "a", "c"):
        recall.put(key, key, now=0.0)

    assert [recall.get(key, now=0.0) for key in ("a", "b", "c")] == ["a", None, "c"]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 3)), max_size=60))
def test_bounds_hold_whatever_comes(steps):
    recall: Recall[int] = Recall(max_entries=3, max_age_s=5.0)
    now, put_at = 0.0, {}
    for number, (key, pause_s) in enumerate(steps):
        now += pause_s
        recall.put(key, number, now=now)
        put_at[key] = (now, number)

        assert len(recall) <= 3
        for known, (at, value) in put_at.items():
            assert recall.get(known, now=now) in (None, value)
            if now - at > 5.0:
                assert recall.get(known, now=now) is None
        assert recall.get(key, now=now) == number
