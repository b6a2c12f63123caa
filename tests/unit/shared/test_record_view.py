"""What is known of a bucket never goes back to an older state of it, unless it is another bucket by now."""

from __future__ import annotations

import pytest

from shared.entry import Entry
from shared.ids import ServiceName
from shared.messages import DesiredRecord
from shared.record_view import Reading, State, View

A, B = "a", "b"


def entry(key: str, revision: int) -> Entry[DesiredRecord]:
    return Entry(DesiredRecord(service=ServiceName(key), replicas=revision, by="x"), revision)


def reading(seq: int, *entries: Entry[DesiredRecord], bad: str = "") -> Reading[DesiredRecord]:
    return Reading({one.record.service: one for one in entries}, frozenset(bad), seq)


def view(*entries: Entry[DesiredRecord], seq: int, bad: str = "") -> View[DesiredRecord]:
    made: View[DesiredRecord] = View(lambda: 10.0)
    made.replace(reading(seq, *entries, bad=bad), read_s=0.0)
    return made


@pytest.mark.parametrize("revision", [4, 5])
def test_an_older_state_of_a_key_changes_nothing(revision: int):
    known = view(entry(A, 5), seq=5)

    assert not known.update(A, State(revision, entry(A, revision)))
    assert not known.update(A, State(revision))
    assert {A: entry(A, 5)} == known.entries


def test_a_newer_state_of_a_key_replaces_it():
    known = view(entry(A, 5), seq=5)

    assert known.update(A, State(6, entry(A, 6)))
    assert {A: entry(A, 6)} == known.entries
    assert known.update(A, State(7, is_unreadable=True))
    assert ({}, {A}) == (known.entries, known.unreadable)
    assert not known.update(A, State(8, is_unreadable=True))
    assert known.update(A, State(9))
    assert ({}, frozenset()) == (known.entries, known.unreadable)
    assert not known.update(A, State(10))


def test_what_is_newer_than_a_whole_reading_outlasts_it_and_all_else_goes():
    known = view(entry(A, 5), entry(B, 3), seq=5, bad="c")
    known.update("d", State(9, entry("d", 9)))
    known.entries["e"] = entry("e", 12)

    assert known.replace(reading(11, entry(A, 10)), read_s=4.0)
    assert {A: entry(A, 10), "e": entry("e", 12)} == known.entries
    assert frozenset() == known.unreadable
    assert 6.0 == known.age_s


def test_a_bucket_that_counts_anew_is_taken_as_it_is():
    known = view(entry(A, 50), entry(B, 51), seq=51)

    assert known.replace(reading(2, entry(A, 2)), read_s=1.0)
    assert {A: entry(A, 2)} == known.entries


def test_a_reading_that_says_the_same_is_no_change_but_for_the_first():
    known: View[DesiredRecord] = View(lambda: 10.0)

    assert not known.is_read
    assert known.replace(reading(0), read_s=1.0)
    assert not known.replace(reading(0), read_s=2.0)
