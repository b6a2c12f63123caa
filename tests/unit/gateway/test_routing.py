"""The router takes the least loaded healthy engine, says why, and does not herd."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.loadbook import LoadBook
from services.gateway.routing import (
    Route,
    RouteFacts,
    Router,
    RouteReason,
    RoutingSettings,
    choices_limit,
)
from shared.ids import EngineId, ServiceName, StreamNo
from shared.messages import EngineHeartbeat, EngineState

A, B, C = EngineId("ea"), EngineId("eb"), EngineId("ec")
FACTS = RouteFacts(service="m", work_tokens=500)


def beat(engine=A, *, state=EngineState.READY, tokens=0, **fields) -> EngineHeartbeat:
    defaults = {"max_model_len": 4096, "max_streams": 8}
    return EngineHeartbeat(
        engine=engine,
        service=ServiceName("m"),
        beat=1,
        state=state,
        backend="fake",
        outstanding_tokens=tokens,
        **(defaults | fields),
    )


class Desk:
    """A router with its book, and everything old enough to be past the slow start."""

    def __init__(self, *beats: EngineHeartbeat, seed: int = 1, at: float = 0.0) -> None:
        self.router = Router(RoutingSettings(), seed=seed)
        self.book = self.router.book
        self.beats = list(beats)
        for one in beats:
            self.book.account(one.engine).observe(one, now=at)

    def choose(self, facts: RouteFacts = FACTS, *, now: float = 100.0, gateways: int = 1) -> Route:
        return self.router.choose(self.beats, facts, now=now, gateways=gateways)

    def send(self, no: int, *, work: int = 500, gateways: int = 1) -> EngineId:
        engine = self.choose(gateways=gateways).engine
        assert engine is not None
        self.book.account(engine).sent(StreamNo(no), work_tokens=work, choices=1)
        return engine


@pytest.mark.parametrize(
    ("beats", "facts", "reason"),
    [
        ([], FACTS, RouteReason.NO_SERVICE),
        ([beat()], RouteFacts(service="other", work_tokens=1), RouteReason.NO_SERVICE),
        ([beat(state=EngineState.STARTING)], FACTS, RouteReason.NOT_READY),
        ([beat(state=EngineState.DRAINING)], FACTS, RouteReason.NOT_READY),
        ([beat(state=EngineState.FAILED)], FACTS, RouteReason.NOT_READY),
        ([beat(step_age_s=31.0)], FACTS, RouteReason.HUNG),
        (
            [beat()],
            RouteFacts(service="m", work_tokens=1, tried=frozenset({A})),
            RouteReason.TRIED,
        ),
    ],
)
def test_no_engine_comes_with_the_reason(beats, facts, reason):
    route = Desk(*beats).choose(facts)

    assert (None, reason) == (route.engine, route.reason)


def test_the_only_engine_that_passes_is_taken():
    desk = Desk(beat(A, state=EngineState.DRAINING), beat(B, tokens=10**6), beat(C, step_age_s=60))

    assert (B, RouteReason.ONLY) == (desk.choose().engine, desk.choose().reason)


def test_least_outstanding_work_wins():
    route = Desk(beat(A, tokens=9000), beat(B, tokens=3000), beat(C, tokens=6000)).choose()

    assert (B, RouteReason.BEST, 3) == (route.engine, route.reason, route.considered)


def test_what_was_sent_since_the_last_beat_counts():
    desk = Desk(beat(A), beat(B))

    counts = Counter(desk.send(no) for no in range(10))

    assert {A: 5, B: 5} == counts


def test_a_beat_replaces_what_was_answered_and_keeps_what_is_on_its_way():
    account = Desk(beat(A)).book.account(A)
    account.sent(StreamNo(1), work_tokens=500, choices=1)
    account.sent(StreamNo(2), work_tokens=70, choices=1)
    account.answered(StreamNo(1))

    account.observe(beat(A, tokens=480), now=1.0)

    assert 480 + 70 == account.outstanding_tokens()


def test_the_unused_rest_of_an_ended_stream_is_free_at_once():
    account = Desk(beat(A)).book.account(A)
    account.sent(StreamNo(1), work_tokens=500, choices=1)
    account.answered(StreamNo(1))
    account.observe(beat(A, tokens=450), now=1.0)

    account.ended(StreamNo(1), unused_tokens=400)

    assert 50 == account.outstanding_tokens()


@pytest.mark.parametrize(("began_after_beat", "left"), [(True, 0), (False, 450)])
def test_what_the_last_beat_had_of_an_ended_stream_is_gone_with_it(began_after_beat, left):
    """All of it where its prompt was still to be computed; else the beat had only the rest of its answer, which has been made since."""
    account = Desk(beat(A)).book.account(A)
    account.sent(StreamNo(1), work_tokens=500, choices=1)
    account.answered(StreamNo(1))
    if not began_after_beat:
        account.begun(StreamNo(1))
    account.observe(beat(A, tokens=450), now=1.0)
    account.begun(StreamNo(1))

    account.ended(StreamNo(1), unused_tokens=0)

    assert left == account.outstanding_tokens()


def test_work_that_is_saved_is_not_counted_until_a_beat_says_otherwise():
    account = Desk(beat(A)).book.account(A)
    account.sent(StreamNo(1), work_tokens=500, saved_tokens=450, choices=1)
    assert 50 == account.outstanding_tokens()
    account.answered(StreamNo(1))

    account.observe(beat(A, tokens=500), now=1.0)

    assert 500 == account.outstanding_tokens()
    account.begun(StreamNo(1))
    account.ended(StreamNo(1), unused_tokens=0)
    assert 0 == account.outstanding_tokens()


def test_a_fresh_engine_gets_its_share_slowly():
    desk = Desk(beat(A), at=-100.0)
    desk.beats.append(beat(B))
    desk.book.account(B).observe(beat(B), now=99.0)

    share = Counter(desk.send(no) for no in range(100))[B]

    assert 10 <= share <= 25


def test_failures_cost_share_and_are_forgiven():
    desk = Desk(beat(A), beat(B))
    for _ in range(4):
        desk.book.account(A).penalty.add(now=100.0)

    assert B == desk.choose(now=100.0).engine
    assert {A, B} == {desk.choose(now=200.0).engine for _ in range(50)}


def test_an_engine_with_too_short_a_context_is_left_out_while_a_longer_one_exists():
    desk = Desk(beat(A, max_model_len=256), beat(B, max_model_len=4096, tokens=50_000))

    assert B == desk.choose().engine
    assert B == desk.choose(RouteFacts(service="m", work_tokens=10**6)).engine


def test_ties_are_drawn_differently_by_different_gateways():
    engines = [EngineId(f"e{i}") for i in range(8)]
    picks = {Desk(*map(beat, engines), seed=seed).choose().engine for seed in range(40)}

    assert len(picks) >= 6


def test_gateways_do_not_herd_on_the_idle_engine_between_two_beats():
    beats = [beat(A, tokens=0), beat(B, tokens=20_000), beat(C, tokens=20_000)]
    desks = [Desk(*beats, seed=seed) for seed in range(4)]

    sent = Counter(desk.send(no, gateways=4) for desk in desks for no in range(40))

    assert sent[A] * 500 <= 2 * 20_000 + 40 * 500


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("sent", "answered", "begun", "ended", "beat")),
        st.integers(1, 6),
        st.integers(0, 1000),
    ),
    max_size=60,
)


@given(STEPS)
def test_the_book_is_never_negative_and_empty_after_the_last_stream(steps):
    account = LoadBook().account(A)
    opened: set[int] = set()
    for what, no, tokens in steps:
        if what == "sent" and no not in opened:
            opened.add(no)
            account.sent(StreamNo(no), work_tokens=tokens, choices=2)
        elif what == "answered":
            account.answered(StreamNo(no))
        elif what == "begun":
            account.begun(StreamNo(no))
        elif what == "ended":
            opened.discard(no)
            account.ended(StreamNo(no), unused_tokens=tokens)
        elif what == "beat":
            account.observe(beat(A, tokens=tokens, running=no), now=0.0)
        assert account.outstanding_tokens() >= 0
        assert 2 * len(opened) == account.own_choices

    for no in list(opened):
        account.ended(StreamNo(no), unused_tokens=0)
    account.observe(beat(A, tokens=0), now=0.0)

    assert (0, 0, 0) == (account.own_choices, account.own_streams, account.outstanding_tokens())


@given(
    st.lists(st.integers(0, 10**6), min_size=2, max_size=8),
    st.integers(1, 5000),
    st.integers(0, 2**32),
)
def test_the_choice_is_never_much_worse_than_the_best(loads, work, seed):
    engines = [EngineId(f"e{i}") for i in range(len(loads))]
    desk = Desk(*(beat(e, tokens=t) for e, t in zip(engines, loads, strict=True)), seed=seed)

    route = desk.choose(RouteFacts(service="m", work_tokens=work))

    assert route.engine is not None
    chosen = loads[engines.index(route.engine)]
    assert (chosen + 256 + work) * 0.95 <= min(loads) + 256 + work + 1


def test_the_limit_is_all_slots_less_what_other_gateways_hold():
    desk = Desk(beat(A, running=3), beat(B, running=2, waiting=2))

    assert 16 - 7 == choices_limit(desk.beats, desk.book, over_commit=1.0, gateways=4)


def test_the_limit_never_falls_below_an_equal_share():
    desk = Desk(beat(A, running=8), beat(B, running=8))

    assert 8 == choices_limit(desk.beats, desk.book, over_commit=1.0, gateways=2)
    assert 0 == choices_limit([], desk.book, over_commit=1.0, gateways=2)


def test_own_choices_are_not_taken_for_those_of_others():
    desk = Desk(beat(A))
    desk.book.account(A).sent(StreamNo(1), work_tokens=1, choices=4)
    desk.book.account(A).observe(beat(A, running=4), now=1.0)

    assert 8 == choices_limit(desk.beats, desk.book, over_commit=1.0, gateways=1)
