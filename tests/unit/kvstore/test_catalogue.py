"""What engines are told is what serving mirrors have, whatever comes, goes and changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.kvstore.catalogue import Catalogue, SpaceFacts

SPACE = "s"


def a_catalogue(values: int = 100) -> Catalogue:
    made = Catalogue(budget_bytes=values * 8192, correlated_s=0.0)
    made.facts[SPACE] = SpaceFacts(value_bytes=4096)
    return made


def rows(*numbers: int, generation: int = 1) -> list[tuple[bytes, int, float, float]]:
    return [(b"%d" % n, generation, float(n), 0.0) for n in numbers]


def come(catalogue: Catalogue, mirror: int, *numbers: int, generation: int = 1) -> list[bytes]:
    """A mirror opens with these values; return what it must delete."""
    catalogue.begins(mirror)
    unwanted = catalogue.has(mirror, SPACE, 4096, rows(*numbers, generation=generation))
    catalogue.opened(mirror, keeps=set())
    return unwanted


def news(catalogue: Catalogue) -> tuple[set[bytes], set[bytes]]:
    while catalogue.look_further():
        pass
    for _, gained, lost in catalogue.take_news():
        return set(gained), set(lost)
    return set(), set()


def test_keys_are_told_when_a_mirror_serves_and_lost_when_the_last_one_goes():
    catalogue = a_catalogue()
    come(catalogue, 0, 1, 2)
    come(catalogue, 1, 2, 3)
    assert ({b"1", b"2", b"3"}, set()) == news(catalogue)
    catalogue.dropped(0)
    assert (set(), {b"1"}) == news(catalogue)
    catalogue.dropped(1)
    assert (set(), {b"2", b"3"}) == news(catalogue)
    come(catalogue, 0, 1, 2)
    assert ({b"1", b"2"}, set()) == news(catalogue)


def test_a_value_gained_and_lost_before_anybody_heard_is_no_news():
    catalogue = a_catalogue()
    come(catalogue, 0, 1)
    catalogue.remove([catalogue.index.get(SPACE, b"1")])
    assert (set(), set()) == news(catalogue)


def test_what_was_removed_meanwhile_does_not_come_back_with_a_mirror():
    catalogue = a_catalogue()
    come(catalogue, 0, 1, 2)
    come(catalogue, 1, 1, 2)
    catalogue.dropped(1)
    catalogue.remove([catalogue.index.get(SPACE, b"1")])
    assert [b"1"] == come(catalogue, 1, 1, 2)
    assert catalogue.index.get(SPACE, b"1") is None


def test_a_mirror_that_was_emptied_lacks_all_and_one_that_came_late_brings_its_own():
    catalogue = a_catalogue()
    come(catalogue, 0)
    come(catalogue, 1, 1, 2)
    assert {b"1", b"2"} == {entry.key for entry in catalogue.lacking(0)}
    assert [] == list(catalogue.lacking(1))


def test_another_generation_of_a_value_is_deleted():
    catalogue = a_catalogue()
    come(catalogue, 0, 1, generation=5)
    assert [b"1"] == come(catalogue, 1, 1, generation=4)
    assert 0b01 == catalogue.index.get(SPACE, b"1").mirrors


def test_values_of_another_size_are_deleted():
    catalogue = a_catalogue()
    catalogue.begins(0)
    assert [b"1"] == catalogue.has(0, SPACE, 999, rows(1))


def test_what_is_being_written_is_no_orphan():
    catalogue = a_catalogue()
    catalogue.index.add(SPACE, b"9", charged=8192, generation=1, now=0.0)
    catalogue.index.add(SPACE, b"8", charged=8192, generation=1, now=0.0)
    catalogue.begins(0)
    catalogue.opened(0, keeps={(SPACE, b"9")})
    assert catalogue.index.get(SPACE, b"9") is not None
    assert catalogue.index.get(SPACE, b"8") is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["come", "drop", "remove", "evict"]),
        st.integers(0, 1),
        st.lists(st.integers(0, 9), max_size=5, unique=True),
    ),
    max_size=30,
)


@given(STEPS)
def test_what_is_told_adds_up_to_what_can_be_loaded(steps):
    catalogue = a_catalogue(6)
    heard: set[bytes] = set()
    for step, mirror, numbers in steps:
        match step:
            case "come":
                come(catalogue, mirror, *numbers)
                catalogue.make_room(0)
            case "drop":
                catalogue.dropped(mirror)
            case "remove":
                entries = [catalogue.index.get(SPACE, b"%d" % n) for n in numbers]
                catalogue.remove([entry for entry in entries if entry is not None])
            case "evict":
                catalogue.make_room(8192)
        gained, lost = news(catalogue)
        assert not gained & heard
        assert lost <= heard
        heard = heard - lost | gained
        keys = [entry.key for entry in catalogue.index.entries(SPACE)]
        assert heard == {key for key in keys if catalogue.can_load(SPACE, key)}
        assert catalogue.index.used_bytes <= 6 * 8192
