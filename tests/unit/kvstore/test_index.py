"""What goes first when room is needed, against a plain model of LRU-K, and what the index keeps true."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.kvstore.index import Index, charge

SPACE = "s"
SIZE = 4096
CORRELATED_S = 5.0


def an_index(values: int, *, correlated_s: float = CORRELATED_S) -> Index:
    return Index(budget_bytes=values * SIZE, correlated_s=correlated_s)


def add(index: Index, key: bytes, now: float, space: str = SPACE):
    return index.add(space, key, charged=SIZE, generation=1, now=now)


def test_a_value_used_once_goes_before_one_used_twice():
    index = an_index(2)
    twice, once = add(index, b"twice", 0.0), add(index, b"once", 100.0)
    index.use(twice, 50.0)

    assert [once] == index.make_room(SIZE)


def test_of_those_used_twice_the_one_whose_second_last_use_is_longest_ago_goes():
    index = an_index(2)
    a, b = add(index, b"a", 0.0), add(index, b"b", 10.0)
    index.use(b, 20.0)
    index.use(a, 1000.0)  # its last use is newer, its second last older

    assert [a] == index.make_room(SIZE)


def test_uses_close_together_count_as_one():
    index = an_index(2)
    burst, spread = add(index, b"burst", 0.0), add(index, b"spread", 0.0)
    for now in (1.0, 2.0, 3.0, 4.0, 7.0):
        index.use(burst, now)
    index.use(spread, 6.0)

    assert [burst] == index.make_room(SIZE)


def test_a_value_that_comes_back_counts_as_used_twice():
    index = an_index(2)
    add(index, b"old", 0.0)
    add(index, b"other", 1.0)
    (gone,) = index.make_room(SIZE)
    assert b"old" == gone.key
    back = add(index, b"old", 100.0)

    assert 0.0 < back.last
    index2 = an_index(2)
    first = add(index2, b"x", 10.0)
    index2.remove(first)  # taken out, not evicted: nothing is remembered
    assert 0.0 == add(index2, b"x", 100.0).prior


def test_what_was_evicted_at_a_time_is_its_use_before():
    index = an_index(1)
    add(index, b"old", 10.0)
    index.make_room(SIZE)

    assert 10.0 == add(index, b"old", 100.0).prior


def test_history_comes_back_from_the_disk_and_the_newer_one_wins():
    index = an_index(10)
    entry = index.restore(SPACE, b"a", charged=SIZE, generation=7, last=50.0, prior=20.0)

    assert entry is index.restore(SPACE, b"a", charged=SIZE, generation=7, last=80.0, prior=10.0)
    assert (80.0, 20.0) == (entry.last, entry.prior)
    index.restore(SPACE, b"a", charged=SIZE, generation=7, last=30.0, prior=29.0)
    assert (80.0, 20.0) == (entry.last, entry.prior)
    assert SIZE == index.used_bytes


def test_a_clock_that_steps_back_stands_still():
    index = an_index(10)
    entry = add(index, b"a", 100.0)
    index.use(entry, 20.0)

    assert (100.0, 0.0) == (entry.last, entry.prior)


def test_uses_are_noted_once():
    index = an_index(10)
    a, b = add(index, b"a", 0.0), add(index, b"b", 0.0)
    index.use(a, 10.0)
    index.use(a, 20.0)
    index.use(b, 20.0)
    index.remove(b)

    assert [a] == index.take_unnoted(100)
    assert [] == index.take_unnoted(100)


def test_a_charge_is_whole_pages_with_the_header():
    assert 4096 == charge(4080)
    assert 8192 == charge(4081)


OPS = st.lists(
    st.tuples(st.sampled_from("aur"), st.integers(0, 12), st.floats(0.1, 20.0)), max_size=120
)


@given(OPS)
def test_it_evicts_as_the_plain_rule_would(ops):
    """The heap with late corrections gives the same victims as sorting all by (used twice, time)."""
    index = an_index(6)
    now = 0.0
    for op, number, step in ops:
        now += step
        key = b"%d" % number
        entry = index.get(SPACE, key)
        if op == "a" and entry is None:
            kept = index.entries(SPACE)
            wanted = min(kept, key=lambda e: e.order) if len(kept) == 6 else None
            gone = index.make_room(SIZE)
            assert ([] if wanted is None else [wanted.order]) == [e.order for e in gone]
            add(index, key, now)
        elif op == "u" and entry is not None:
            index.use(entry, now)
        elif op == "r" and entry is not None:
            index.remove(entry)
        held = index.entries(SPACE)
        assert len(held) == len(index) <= 6
        assert len(held) * SIZE == index.used_bytes
        assert all(e.is_here and index.get(SPACE, e.key) is e for e in held)
