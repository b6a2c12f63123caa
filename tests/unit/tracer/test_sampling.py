"""Which traces are kept: by reason, by share, consistently, within the limit, and what the tracestate says then."""

from __future__ import annotations

from typing import Any

import pytest

from services.tracer.restraint import WINDOW_S, Restraint
from services.tracer.sampling import (
    FAST_RATE,
    LEAST_RATE,
    Reason,
    Sampler,
    Verdict,
    bounds_us,
    classify,
    ordinary_rate,
)
from services.tracer.tracestate import SPACE, read
from services.tracer.typical import Durations
from shared.ids import EngineId
from shared.messages import Attempt, Ledger, Outcome
from shared.observability import Observability, Policies
from tests.support.traced_ledgers import SERVICE, ledger, numbered

USUAL_US = 500_000
NO_POLICY = Observability()
ALL = Observability(sampling_rate=1.0)
PARENT = b"12345678"


def sampler(
    policy: Observability = NO_POLICY, *, limit: float = 1e9, restraint: Restraint | None = None
) -> Sampler:
    return Sampler(Policies(default=policy), limit_per_s=limit, restraint=restraint or Restraint())


def flow(
    under: Sampler, count: int, *, per_s: float, start: float = 0.0, **changes: Any
) -> list[tuple[Ledger, Verdict]]:
    """Return the verdicts on an even flow of requests."""
    ledgers = [numbered(n, **{"wall_us": USUAL_US} | changes) for n in range(count)]
    return [
        (one, under.decide(SERVICE, one, now=start + n / per_s)) for n, one in enumerate(ledgers)
    ]


def share(verdicts: list[tuple[Ledger, Verdict]]) -> float:
    return sum(verdict.keep for _, verdict in verdicts) / len(verdicts)


def thresholds(verdicts: list[tuple[Ledger, Verdict]]) -> list[int]:
    found = [read(verdict.trace_state).threshold for _, verdict in verdicts if verdict.keep]
    return [threshold for threshold in found if threshold is not None]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"outcome": Outcome.FAILED}, Reason.FAILED),
        ({"outcome": Outcome.EXPIRED, "has_own_deadline": True}, Reason.EXPIRED),
        ({"outcome": Outcome.STOPPED}, Reason.STOPPED),
        ({"attempts": [Attempt(engine=EngineId("e"), why="is gone", us=1)]}, Reason.MIGRATED),
        ({"preemptions": 1}, Reason.PREEMPTED),
        ({"mode_changes": 1}, Reason.MODE_CHANGED),
        ({"wall_us": 1_000_001}, Reason.SLOW),
        ({"parent_id": PARENT, "trace_flags": 1}, Reason.CALLER),
        ({"parent_id": PARENT, "trace_flags": 0}, Reason.FAST),
        ({"trace_flags": 1}, Reason.FAST),
        ({"wall_us": USUAL_US}, Reason.USUAL),
        ({"outcome": Outcome.REFUSED, "wall_us": 300}, Reason.FAST),
    ],
)
def test_the_reason_of_a_request(changes, reason):
    assert reason is classify(ledger(**changes), NO_POLICY, Durations())


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": Outcome.FAILED},
        {"outcome": Outcome.EXPIRED},
        {"outcome": Outcome.STOPPED},
        {"preemptions": 1},
        {"mode_changes": 2},
        {"wall_us": 60_000_000},
    ],
)
def test_what_went_wrong_is_kept_always_even_where_the_caller_does_not_record(changes):
    verdicts = flow(sampler(), 50, per_s=100, parent_id=PARENT, **changes)

    assert 1.0 == share(verdicts)


def test_the_healthy_and_fast_are_kept_by_one_in_a_thousand():
    verdicts = flow(sampler(), 8_000, per_s=5_000, wall_us=90_000)

    assert FAST_RATE == pytest.approx(share(verdicts), rel=0.3)


def test_those_between_are_kept_by_what_a_thousand_a_second_allow():
    slow, fast = sampler(), sampler()

    some = flow(slow, 500, per_s=500)
    many = flow(fast, 6_000, per_s=1_500)[3_000:]

    assert 1.0 == share(some)
    assert 0.67 == pytest.approx(share(many), rel=0.1)


@pytest.mark.parametrize(
    ("reason", "policy", "per_s", "rate"),
    [
        (Reason.FAST, NO_POLICY, 1.0, 0.001),
        (Reason.USUAL, NO_POLICY, 0.0, 1.0),
        (Reason.USUAL, NO_POLICY, 1_000.0, 1.0),
        (Reason.USUAL, NO_POLICY, 4_000.0, 0.25),
        (Reason.USUAL, NO_POLICY, 1e9, LEAST_RATE),
        (Reason.USUAL, Observability(sampling_rate=0.2), 1e9, 0.2),
        (Reason.FAST, Observability(sampling_rate=0.2), 1.0, 0.2),
    ],
)
def test_the_rate_of_ordinary_ones(reason, policy, per_s, rate):
    assert rate == ordinary_rate(reason, policy, per_s)


def test_slow_and_fast_are_learned_where_a_service_is_slower_than_the_fixed_bounds():
    durations = Durations()
    for n in range(1_000):
        durations.observe(2_000_000 + n * 10_000)

    slow_us, fast_us = bounds_us(NO_POLICY, durations)

    assert 11_900_000 == pytest.approx(slow_us, rel=0.1)
    assert 7_000_000 == pytest.approx(fast_us, rel=0.1)
    assert (3e6, 3e6) == bounds_us(Observability(slow_s=3.0), durations)
    assert (1e6, 2e5) == bounds_us(NO_POLICY, Durations())


def test_two_tracers_keep_the_same_traces_and_say_their_threshold():
    policy = Observability(sampling_rate=0.25)

    one, other = flow(sampler(policy), 400, per_s=100), flow(sampler(policy), 400, per_s=7)

    kept = [led.request for led, verdict in one if verdict.keep]
    assert kept == [led.request for led, verdict in other if verdict.keep]
    assert 0.25 == pytest.approx(len(kept) / 400, abs=0.05)
    assert {SPACE // 4 * 3} == set(thresholds(one))


def test_a_caller_that_records_is_followed_and_its_threshold_only_raised():
    records = {"parent_id": PARENT, "trace_flags": 1, "wall_us": 90_000}
    kept = numbered(1, trace_state="a=b,ot=th:8", **records)
    high = bytes(9) + b"\xff" * 7

    known = sampler().decide(SERVICE, _with_id(kept, high), now=0.0)
    untold = sampler().decide(SERVICE, numbered(2, **records), now=0.0)
    wrong = sampler().decide(SERVICE, _with_id(kept, bytes(15) + b"\x01"), now=0.0)

    assert (True, Reason.CALLER, "ot=th:8,a=b") == (known.keep, known.reason, known.trace_state)
    assert (True, "") == (untold.keep, untold.trace_state)
    assert (True, "a=b") == (wrong.keep, wrong.trace_state)


def _with_id(one: Ledger, trace_id: bytes) -> Ledger:
    return ledger(
        trace_id=trace_id,
        parent_id=one.parent_id,
        trace_flags=one.trace_flags,
        trace_state=one.trace_state,
        wall_us=one.wall_us,
    )


def test_the_randomness_that_a_caller_names_counts_instead_of_the_trace_id():
    policy = Observability(sampling_rate=0.5)
    low, high = bytes(16), bytes(9) + b"\xff" * 7

    def keeps(trace_id: bytes, rv: str) -> bool:
        one = ledger(trace_id=trace_id, trace_state=f"ot=rv:{rv}", wall_us=USUAL_US)
        return sampler(policy).decide(SERVICE, one, now=0.0).keep

    assert (True, False) == (keeps(low, "ffffffffffffff"), keeps(high, "00000000000000"))


def test_a_caller_that_does_not_record_gets_no_ordinary_traces():
    verdicts = flow(sampler(ALL), 50, per_s=10, parent_id=PARENT)

    assert 0.0 == share(verdicts)


def test_the_limit_holds_and_is_told_in_the_threshold():
    verdicts = flow(sampler(ALL, limit=50), 6_000, per_s=500)

    later = verdicts[2_000:]
    kept = sum(verdict.keep for _, verdict in later)
    assert 8 * 50 == pytest.approx(kept, rel=0.1)
    stand_for = sum(SPACE / (SPACE - threshold) for threshold in thresholds(later))
    assert len(later) == pytest.approx(stand_for, rel=0.15)


def test_what_comes_faster_than_the_share_can_follow_is_cut_and_counted():
    verdicts = flow(sampler(limit=50), 1_000, per_s=1e6, outcome=Outcome.FAILED)

    assert 100 == sum(verdict.keep for _, verdict in verdicts)
    assert 900 == sum(verdict.is_cut for _, verdict in verdicts)


def test_failures_go_before_ordinary_traces_at_the_limit():
    under = sampler(ALL, limit=100)
    failed = kept = 0
    for n in range(5_000):
        now, fails = n / 500, n % 20 == 0
        outcome = Outcome.FAILED if fails else Outcome.FINISHED
        verdict = under.decide(SERVICE, numbered(n, wall_us=USUAL_US, outcome=outcome), now=now)
        if now >= 5:
            failed += fails and verdict.keep
            kept += verdict.keep

    assert 5 * 25 == failed
    assert 5 * 100 == pytest.approx(kept, rel=0.1)


def test_restraint_halves_ordinary_traces_and_then_keeps_failures_only():
    restraint = Restraint()
    policy = Observability(sampling_rate=1.0)
    restraint.measure(0.5, window_s=WINDOW_S, engines=1)
    halved = flow(sampler(policy, restraint=restraint), 2_000, per_s=100)
    restraint.measure(9.0, window_s=WINDOW_S, engines=1)
    none = flow(sampler(policy, restraint=restraint), 100, per_s=100)
    slow = flow(sampler(policy, restraint=restraint), 100, per_s=100, wall_us=5_000_000)
    failed = flow(sampler(policy, restraint=restraint), 100, per_s=100, outcome=Outcome.FAILED)

    assert 0.5 == pytest.approx(share(halved), rel=0.05)
    assert (0.0, 0.0, 1.0) == (share(none), share(slow), share(failed))
