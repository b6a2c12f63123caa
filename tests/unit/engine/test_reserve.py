"""Who may start: by values, and what holds in any order of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.engine.reserve import Reserve
from services.engine.reserve_plan import Plan

PLAN = Plan(total=100, short_tokens=10, short_blocks=25, interactive_blocks=12, default_blocks=6)
INTERACTIVE, DEFAULT, BATCH = range(3)
SHORT, LONG = 10, 11


class Pool(Reserve):
    """A reserve whose requests hold their blocks from the start."""

    def __init__(self, plan: Plan = PLAN) -> None:
        super().__init__(plan)
        self.now = 0.0

    @property
    def free(self) -> int:
        return self.plan.total - self.promised

    def wait(self, key: str, need: int, tokens: int = SHORT, rank: int = DEFAULT) -> None:
        self.join(key, need=need, tokens=tokens, rank=rank, now=self.now)

    def begin(self) -> list[str]:
        """Start whoever may."""
        started = []
        while (key := self.next(self.now, self.free)) is not None:
            self.start(key, self.now)
            started.append(key)
        return started


def test_a_long_one_that_does_not_fit_holds_up_nobody_behind_it():
    pool = Pool()
    pool.wait("first", 60, LONG)
    pool.wait("second", 60, LONG)
    pool.wait("short", 5)

    assert ["first", "short"] == sorted(pool.begin())
    assert 1 == pool.blocked


def test_long_ones_leave_the_kept_blocks_to_short_ones():
    pool = Pool()
    for number in range(5):
        pool.wait(f"long {number}", 20, LONG)

    assert 3 == len(pool.begin())
    assert 40 == pool.free

    pool.wait("short", 25)
    assert ["short"] == pool.begin()


def test_worse_classes_leave_the_kept_blocks_to_better_ones():
    pool = Pool()
    for number in range(20):
        pool.wait(f"b{number}", 10, rank=BATCH)
    assert 8 == len(pool.begin())

    pool.wait("d", 7, rank=DEFAULT)
    assert ["d"] == pool.begin()

    pool.wait("d2", 7, rank=DEFAULT)
    pool.wait("i", 7, rank=INTERACTIVE)
    assert ["i"] == pool.begin()


def test_better_classes_first_and_short_before_long_of_one_class():
    pool = Pool()
    for rank in (BATCH, DEFAULT, INTERACTIVE):
        pool.wait(f"long {rank}", 1, LONG, rank)
        pool.wait(f"short {rank}", 1, SHORT, rank)

    assert [f"{kind} {rank}" for rank in range(3) for kind in ("short", "long")] == pool.begin()


def test_a_worse_class_takes_nothing_that_a_better_one_waits_for():
    pool = Pool()
    pool.wait("running", 60, LONG, INTERACTIVE)
    pool.begin()
    pool.wait("waits", 70, LONG, INTERACTIVE)
    for number in range(10):
        pool.wait(f"b{number}", 10, rank=BATCH)

    assert ["b0", "b1", "b2"] == pool.begin()
    pool.drop("running")
    assert ["waits"] == pool.begin()


def test_whoever_is_overdue_gets_what_is_freed():
    pool = Pool()
    for number in range(10):
        pool.wait(f"short {number}", 10, rank=INTERACTIVE)
    pool.begin()
    pool.wait("long", 70, LONG)
    pool.begin()
    pool.now = PLAN.waits_s[DEFAULT]
    for number in range(10, 20):
        pool.wait(f"short {number}", 10, rank=INTERACTIVE)

    starts: list[str] = []
    for number in range(10):
        pool.drop(f"short {number}")
        starts += pool.begin()

    assert 3 == starts.index("long")


def test_one_that_needs_the_whole_pool_starts_when_nobody_runs():
    pool = Pool()
    pool.wait("short", 5)
    pool.begin()
    pool.wait("whole", 1000, LONG)
    assert [] == pool.begin()

    pool.drop("short")

    assert ["whole"] == pool.begin()
    assert 100 == pool.promised


def test_blocks_in_use_by_others_are_not_needed_again():
    pool = Pool()
    pool.wait("a", 70, LONG)
    pool.begin()
    pool.wait("b", 40)

    assert "b" == pool.next(0.0, 15, lambda key: 25 if key == "b" else 0)
    assert None is pool.next(0.0, 14, lambda _key: 25)
    assert None is pool.next(0.0, 30, lambda _key: 21), "interactive ones have 12 left"

    pool.start("b", 0.0, shared=25)

    assert 85 == pool.promised
    pool.drop("a")
    pool.drop("b")
    assert 0 == pool.promised


def test_time_without_blocks_is_counted_for_all_of_a_lane():
    pool = Pool()
    pool.wait("running", 70, LONG)
    pool.begin()
    pool.wait("first", 60, LONG)
    pool.begin()
    pool.now = 2.0
    pool.wait("second", 10, LONG)
    pool.now = 5.0
    pool.drop("running")

    assert "first" == pool.next(pool.now, pool.free)
    assert 5.0 == pool.start("first", pool.now)
    assert "second" == pool.next(pool.now, pool.free)
    assert 3.0 == pool.start("second", 9.0)


def test_a_request_that_lost_its_blocks_comes_before_those_that_arrived_later():
    pool = Pool()
    pool.wait("a", 60, LONG)
    pool.begin()
    pool.wait("b", 60, LONG)

    pool.back("a", need=65)

    assert ["a"] == pool.begin()
    assert 65 == pool.promised


def test_one_set_aside_lets_the_next_go_and_keeps_its_place():
    pool = Pool()
    pool.wait("grammar", 5)
    pool.wait("next", 5)
    assert "grammar" == pool.next(0.0, pool.free)

    pool.set_aside("grammar")
    assert ["next"] == pool.begin()
    pool.back("grammar")

    assert ["grammar"] == pool.begin()


@pytest.mark.parametrize("kept", [0, 25])
@given(data=st.data())
def test_nobody_waits_longer_than_its_bound_and_a_life_of_those_before_it(kept, data):
    """A steady stream of short interactive requests that always fill the pool, and a long one."""
    plan = Plan(total=100, short_tokens=10, short_blocks=kept)
    pool = Pool(plan)
    life = data.draw(st.integers(1, 20))
    need = data.draw(st.integers(2, 20))
    whole = data.draw(st.integers(1, 100))
    ends: dict[str, int] = {}
    for tick in range(70):
        pool.now = float(tick)
        for key in [key for key, end in ends.items() if end <= tick]:
            pool.drop(key)
            del ends[key]
        if tick == 5:
            pool.wait("long", whole, LONG, DEFAULT)
        for number in range(100 // need):
            pool.wait(f"{tick}.{number}", need, SHORT, INTERACTIVE)
        for key in pool.begin():
            ends[key] = tick + life
            if key == "long":
                assert tick <= 5 + plan.waits_s[DEFAULT] + 2 * life + 1
                return
    raise AssertionError("the long one never started")


class AnyOrder(RuleBasedStateMachine):
    """Requests come, start, are set aside, lose their blocks, grow and end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool()
        self.waiting: dict[str, int] = {}
        self.running: dict[str, int] = {}
        self.aside: dict[str, int] = {}
        self.count = 0

    @rule(need=st.integers(1, 120), tokens=st.sampled_from([SHORT, LONG]), rank=st.integers(-1, 4))
    def come(self, need: int, tokens: int, rank: int) -> None:
        key = str(self.count)
        self.count += 1
        self.pool.wait(key, need, tokens, rank)
        self.waiting[key] = min(need, 100)

    @rule(pause_s=st.floats(0, 30))
    def step(self, pause_s: float) -> None:
        self.pool.now += pause_s
        for key in self.pool.begin():
            self.running[key] = self.waiting.pop(key)

    @rule(data=st.data())
    @precondition(lambda self: self.waiting)
    def set_aside(self, data) -> None:
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        self.pool.set_aside(key)
        self.aside[key] = self.waiting.pop(key)

    @rule(data=st.data())
    @precondition(lambda self: self.aside)
    def be_back(self, data) -> None:
        key = data.draw(st.sampled_from(sorted(self.aside)))
        self.pool.back(key)
        self.waiting[key] = self.aside.pop(key)

    @rule(data=st.data(), need=st.integers(1, 100))
    @precondition(lambda self: self.running)
    def lose(self, data, need: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.pool.back(key, need=need)
        del self.running[key]
        self.waiting[key] = need

    @rule(data=st.data())
    @precondition(lambda self: self.waiting or self.running or self.aside)
    def end(self, data) -> None:
        key = data.draw(st.sampled_from(sorted(self.waiting | self.running | self.aside)))
        self.pool.drop(key)
        for where in (self.waiting, self.running, self.aside):
            where.pop(key, None)

    @invariant()
    def promises_are_those_of_the_running_and_fit(self) -> None:
        assert sum(self.running.values()) == self.pool.promised <= 100
        assert len(self.waiting) == self.pool.waiting

    @invariant()
    def claims_count_what_started_since(self) -> None:
        entries = [self.pool._entries[key] for key in self.running]
        for lane in self.pool._lanes:
            if (claim := lane.claim) is not None:
                worse = [each for each in entries if each.lane.rank > lane.rank]
                assert claim.taken == sum(e.charged for e in worse if e.order > claim.order)
        if (claim := self.pool._overdue) is not None:
            assert claim.taken == sum(e.charged for e in entries if e.order > claim.order)

    def teardown(self) -> None:
        for key in list(self.waiting | self.running | self.aside):
            self.pool.drop(key)
        assert (0, 0, 0) == (self.pool.promised, self.pool.waiting, self.pool._running)
        assert {0} == {lane.promised for lane in self.pool._lanes}


TestAnyOrder = AnyOrder.TestCase
