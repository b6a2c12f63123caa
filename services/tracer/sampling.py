"""Which traces are kept: decided when a request is over and everything about it is known. Pure; time comes in as a number.

What went wrong or was unusual is kept, of the rest a share, consistent by trace id (`tracestate`), all of it within a hard limit.
A caller's decision is respected: a request of a trace that the caller records is kept, one of a trace that it does not record
only where something was wrong with it. A threshold that came in is only ever raised.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from services.tracer import tracestate
from services.tracer.limiter import Limiter
from services.tracer.policies import PolicyOf
from services.tracer.restraint import Restraint
from services.tracer.spans import SAMPLED, ids_of
from services.tracer.tracestate import OtState
from services.tracer.typical import Durations, Throughput
from shared.ids import ServiceName
from shared.messages import Ledger, Outcome
from shared.observability import Observability

SLOW_US = 1_000_000
FAST_US = 200_000
FAST_RATE = 0.001
LEAST_RATE = 0.01
FULL_RATE_PER_S = 1000.0
"""Requests a second of a service up to which all that are neither slow nor fast are kept."""
MAX_SERVICES = 1024


class Reason(StrEnum):
    """Why a trace is kept, the strongest first."""

    FAILED = "failed"
    EXPIRED = "expired"
    STOPPED = "stopped"
    MIGRATED = "migrated"
    PREEMPTED = "preempted"
    MODE_CHANGED = "mode_changed"
    SLOW = "slow"
    CALLER = "caller"
    """The caller records this trace."""
    USUAL = "usual"
    FAST = "fast"


FAILURES = frozenset({Reason.FAILED, Reason.EXPIRED, Reason.STOPPED, Reason.MIGRATED})
URGENT = FAILURES | {Reason.PREEMPTED, Reason.MODE_CHANGED, Reason.SLOW}
_BY_OUTCOME = {
    Outcome.FAILED: Reason.FAILED,
    Outcome.EXPIRED: Reason.EXPIRED,
    Outcome.STOPPED: Reason.STOPPED,
}


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What becomes of a trace."""

    keep: bool
    reason: Reason
    trace_state: str = ""
    """With the threshold that was applied, where it is known."""
    is_cut: bool = False
    """It would have been kept, and the limit was reached."""


class _Service:
    """What is known of one service."""

    def __init__(self) -> None:
        self.durations = Durations()
        self.throughput = Throughput()


class Sampler:
    """Decides on each ledger once, in the order in which they come."""

    def __init__(self, policies: PolicyOf, *, limit_per_s: float, restraint: Restraint) -> None:
        self._policies = policies
        self._limiter = Limiter(limit_per_s)
        self._restraint = restraint
        self._services: dict[ServiceName, _Service] = {}

    def decide(self, service: ServiceName, ledger: Ledger, *, now: float) -> Verdict:
        """Return what becomes of the request's trace, and learn from it."""
        known = self._known(service)
        policy = self._policies.of(service)
        reason = classify(ledger, policy, known.durations)
        known.throughput.count(now)
        if ledger.outcome is Outcome.FINISHED:
            known.durations.observe(ledger.wall_us)
        probability = self._probability(reason, ledger, policy, known.throughput)
        if probability <= 0.0:
            return Verdict(False, reason)
        urgent = reason in URGENT
        probability *= self._limiter.factor(urgent=urgent, offered=probability, now=now)
        return self._apply(ledger, reason, tracestate.threshold_of(probability), now)

    def _known(self, service: ServiceName) -> _Service:
        known = self._services.get(service)
        if known is None:
            if len(self._services) >= MAX_SERVICES:
                del self._services[next(iter(self._services))]
            known = self._services[service] = _Service()
        return known

    def _probability(
        self, reason: Reason, ledger: Ledger, policy: Observability, throughput: Throughput
    ) -> float:
        if self._restraint.only_failures:
            return 1.0 if reason in FAILURES else 0.0
        if reason in URGENT:
            return 1.0
        if reason is Reason.CALLER:
            return self._restraint.factor
        if ledger.parent_id:
            return 0.0
        return self._restraint.factor * ordinary_rate(reason, policy, throughput.per_s)

    def _apply(self, ledger: Ledger, reason: Reason, threshold: int, now: float) -> Verdict:
        came = tracestate.read(ledger.trace_state)
        randomness = came.randomness
        if randomness is None:
            randomness = tracestate.randomness_of(ids_of(ledger)[0])
        if randomness < threshold:
            return Verdict(False, reason)
        if not self._limiter.take(now, urgent=reason in URGENT):
            return Verdict(False, reason, is_cut=True)
        applied = _applied(ledger, came, threshold, randomness)
        return Verdict(True, reason, tracestate.write(ledger.trace_state, applied))


def classify(ledger: Ledger, policy: Observability, durations: Durations) -> Reason:
    """Return the strongest reason to keep a request's trace."""
    if ledger.outcome in _BY_OUTCOME:
        return _BY_OUTCOME[ledger.outcome]
    if ledger.attempts:
        return Reason.MIGRATED
    if ledger.preemptions or ledger.mode_changes:
        return Reason.PREEMPTED if ledger.preemptions else Reason.MODE_CHANGED
    slow_us, fast_us = bounds_us(policy, durations)
    if ledger.wall_us > slow_us:
        return Reason.SLOW
    if ledger.parent_id and ledger.trace_flags & SAMPLED:
        return Reason.CALLER
    return Reason.FAST if ledger.wall_us < fast_us else Reason.USUAL


def bounds_us(policy: Observability, durations: Durations) -> tuple[float, float]:
    """Return above what a request is slow and below what it is fast: fixed bounds, or its own p99 and p50 where longer."""
    slow_us, fast_us = float(SLOW_US), float(FAST_US)
    if durations.is_known:
        slow_us, fast_us = max(slow_us, durations.p99_us), max(fast_us, durations.p50_us)
    if policy.slow_s is not None:
        slow_us = policy.slow_s * 1e6
    return slow_us, min(fast_us, slow_us)


def ordinary_rate(reason: Reason, policy: Observability, per_s: float) -> float:
    """Return the share of ordinary traces to keep, at this many requests a second."""
    if policy.sampling_rate is not None:
        return policy.sampling_rate
    if reason is Reason.FAST:
        return FAST_RATE
    return max(LEAST_RATE, min(1.0, FULL_RATE_PER_S / per_s)) if per_s else 1.0


def _applied(ledger: Ledger, came: OtState, threshold: int, randomness: int) -> int | None:
    """Return the threshold that the trace passed in all; None: a sampler before us did not tell its own, or told one that cannot be."""
    if not (ledger.parent_id and ledger.trace_flags & SAMPLED):
        return threshold
    if came.threshold is None or came.threshold > randomness:
        return None
    return max(threshold, came.threshold)
