"""Which blocks are told to be on disk: each state is told once, and in the end what is told is what is there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.engine.kv.on_disk import LOOKS, OnDisk

KEYS = [bytes([number]) for number in range(8)]


def test_a_block_is_told_once_and_again_when_it_came_back():
    book = OnDisk()
    book.there([b"a", b"b"])
    book.there([b"a"])
    assert ([b"a", b"b"], []) == book.take()
    assert ([], []) == book.take()

    book.look({b"b"})
    assert ([], [b"a"]) == book.take()

    book.there([b"a"])
    assert ([b"a"], []) == book.take()


def test_what_came_and_went_between_two_tellings_is_no_news():
    book = OnDisk()
    book.there([b"a"])
    book.look(())
    assert ([], []) == book.take()


def test_a_look_costs_the_same_however_much_was_told():
    book = OnDisk()
    book.there(number.to_bytes(4, "big") for number in range(10 * LOOKS))
    book.take()

    book.look(())
    assert LOOKS == len(book.take()[1])


def test_the_first_ones_go_when_there_are_too_many():
    book = OnDisk(most=2)
    book.there([b"a", b"b"])
    book.take()
    book.there([b"c"])
    assert ([b"c"], [b"a"]) == book.take()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("there"), st.sets(st.sampled_from(KEYS))),
            st.tuples(st.just("look"), st.sets(st.sampled_from(KEYS))),
            st.tuples(st.just("take"), st.just(set())),
        )
    ),
    st.sets(st.sampled_from(KEYS)),
)
def test_a_listener_ends_up_with_what_is_there(acts, left):
    book, heard = OnDisk(), set()

    def listen() -> None:
        came, gone = book.take()
        assert not set(came) & set(gone)
        assert heard.isdisjoint(came)
        assert heard.issuperset(gone)
        heard.update(came)
        heard.difference_update(gone)

    for act, keys in acts:
        match act:
            case "there":
                book.there(sorted(keys))
            case "look":
                book.look(keys)
            case _:
                listen()
    book.there(sorted(left))
    book.look(left)
    listen()
    assert left == heard
