"""Every order ends once, whatever the store does; no slot is used while the store may write into it; each is given back once."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.engine.kv.jobs import Jobs, Patience, Settled

PATIENCE = Patience(base_s=1.0, bytes_per_s=100.0)


def jobs(keys_a_part: int = 2) -> Jobs:
    return Jobs(value_bytes=10, patience=PATIENCE, keys_a_part=keys_a_part)


def keys(*names: str) -> list[bytes]:
    return [name.encode() for name in names]


def begun(made: Jobs, *names: str, is_load: bool = True, job: int = 7, era: int = 1):
    slots = list(range(len(names)))
    return made.begin(job, keys(*names), slots, is_load=is_load, era=era, now=0.0)


def test_an_order_without_keys_has_ended_when_it_begins():
    made = jobs()

    assert [] == begun(made)
    assert [Settled(7, True, [], [])] == made.take_settled()


def test_an_order_of_several_messages_ends_with_the_last_of_them():
    made = jobs(keys_a_part=2)
    first, second = begun(made, "a", "b", "c")

    made.done(second.number, [])
    assert [] == made.take_settled()
    made.done(first.number, [1])
    assert [Settled(7, True, keys("a", "c"), keys("b"))] == made.take_settled()
    assert made.is_idle


def test_a_part_that_the_store_did_not_take_is_missing():
    made = jobs()
    (part,) = begun(made, "a")

    made.refuse(part.number)

    assert [Settled(7, True, [], keys("a"))] == made.take_settled()
    assert not made.aside


def test_a_load_that_takes_too_long_fails_at_once_and_its_slots_stay_aside_until_done():
    made = jobs(keys_a_part=10)
    (part,) = begun(made, "a", "b")

    assert 0 == made.give_up_overdue(1.19)
    assert 1 == made.give_up_overdue(1.2)
    assert [Settled(7, True, [], keys("a", "b"))] == made.take_settled()
    assert {0, 1} == made.aside
    assert made.is_silent(1)
    made.done(part.number, [])
    assert [0, 1] == made.take_free()
    assert not made.aside
    assert not made.is_silent(1)
    assert made.is_idle


def test_a_save_has_all_the_time():
    made = jobs()
    begun(made, "a", is_load=False)

    assert 0 == made.give_up_overdue(1e9)
    assert {b"a"} == made.saving


def test_the_end_of_a_connection_ends_loads_at_once_and_all_else_when_its_processes_have_ended():
    made = jobs()
    begun(made, "a", job=1)
    made.begin(2, keys("b"), [5], is_load=False, era=1, now=0.0)

    made.lose(1)
    assert [1] == [each.job for each in made.take_settled()]
    assert {0} == made.aside
    made.let_go(1)
    assert [Settled(2, False, [], keys("b"))] == made.take_settled()
    assert [0] == made.take_free()
    assert made.is_idle


def test_an_old_connection_does_not_make_the_new_one_silent():
    made = jobs()
    begun(made, "a", era=1)

    made.lose(1)

    assert made.is_silent(1)
    assert not made.is_silent(2)


def test_dropping_all_blocks_gives_up_saves_too():
    made = jobs()
    begun(made, "a", is_load=False)

    made.give_up_all()

    assert [7] == [each.job for each in made.take_settled()]
    assert {0} == made.aside
    assert not made.saving


@pytest.mark.parametrize("missing", [[9], [-1]])
def test_a_place_that_is_none_is_overlooked(missing):
    made = jobs()
    (part,) = begun(made, "a")

    made.done(part.number, missing)

    assert [Settled(7, True, keys("a"), [])] == made.take_settled()


class Histories(RuleBasedStateMachine):
    """The store answers, is late, dies and comes back in any order; a model keeps what may be touched."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = jobs()
        self.now = 0.0
        self.era = 1
        self.next_job = 0
        self.free = list(range(12))
        self.writable: dict[int, tuple[int, list[int], bool]] = {}
        """Part, its era, slots, whether it is a load: what the store may still touch."""
        self.lost: set[int] = set()
        self.owed: dict[int, list[int]] = {}
        """Orders that have not ended, and their slots."""

    @rule(count=st.integers(0, 5), is_load=st.booleans())
    def begin(self, count, is_load):
        count = min(count, len(self.free))
        slots, self.free = self.free[:count], self.free[count:]
        assert not self.jobs.aside.intersection(slots)
        names = [b"%d-%d" % (self.next_job, place) for place in range(count)]
        parts = self.jobs.begin(
            self.next_job, names, slots, is_load=is_load, era=self.era, now=self.now
        )
        self.owed[self.next_job] = slots
        self.next_job += 1
        for part in parts:
            self.writable[part.number] = (self.era, list(part.slots), is_load)

    @precondition(lambda self: self.writable)
    @rule(data=st.data())
    def done(self, data):
        number = data.draw(st.sampled_from(sorted(self.writable)))
        if self.writable[number][0] in self.lost:
            return
        del self.writable[number]
        self.jobs.done(number, [])

    @rule(seconds=st.floats(0, 3))
    def pass_time(self, seconds):
        self.now += seconds
        self.jobs.give_up_overdue(self.now)

    @rule()
    def lose(self):
        self.lost.add(self.era)
        self.jobs.lose(self.era)
        self.era += 1

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def let_go(self, data):
        era = data.draw(st.sampled_from(sorted(self.lost)))
        self.lost.discard(era)
        for number in [each for each, (of, _, _) in self.writable.items() if of == era]:
            del self.writable[number]
        self.jobs.let_go(era)

    @rule()
    def drop_all(self):
        self.jobs.give_up_all()
        self.take()
        assert not self.owed

    @rule()
    def take(self):
        self.free += self.jobs.take_free()
        for settled in self.jobs.take_settled():
            slots = self.owed.pop(settled.job)
            self.free += [slot for slot in slots if slot not in self.jobs.aside]

    @invariant()
    def no_free_slot_is_touched(self):
        touched = [slot for _, slots, _ in self.writable.values() for slot in slots]
        assert not set(touched).intersection(self.free)
        assert len(set(self.free)) == len(self.free)

    def teardown(self):
        for era in list(self.lost):
            self.jobs.let_go(era)
        self.jobs.let_go(self.era)
        self.take()
        assert not self.owed
        assert sorted(self.free) == list(range(12))
        assert self.jobs.is_idle


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
