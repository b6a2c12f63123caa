"""What is counted of the requests of one service, version, engine and class. Pure."""

from __future__ import annotations

from collections import Counter

from shared.evidence import Evidence, evidence_of
from shared.latency_bounds import EACH_S, FIRST_S, GAP_S, STAGE_S, WHOLE_S
from shared.messages import STAGES, Ledger, Outcome
from shared.spread import SETTLE, Spread

_FINISHED = Outcome.FINISHED
KINDS = frozenset({"chat", "completion", ""})
"""What requests are; what one may be called by a later gateway counts as unknown, since each kind is a label."""
WAYS = frozenset({"resume", "replay"})


class Answers:
    """Finished requests of a kind."""

    __slots__ = ("each", "first")

    def __init__(self) -> None:
        self.first = Spread(FIRST_S)
        """Time to the first token."""
        self.each = Spread(EACH_S)
        """Mean time of a token after the first."""


class RequestCounts:
    """All counts since the start."""

    __slots__ = (
        "_rows",
        "accepted_tokens",
        "answers",
        "blocked_us",
        "cached_tokens",
        "disk_tokens",
        "drafted_tokens",
        "ended",
        "finished",
        "gap",
        "host_tokens",
        "in_tokens",
        "last_us",
        "lost",
        "out_tokens",
        "preemptions",
        "prefill_tokens",
        "recomputed_tokens",
        "stages",
        "unfinished",
    )

    def __init__(self) -> None:
        self.last_us = 0
        """Wall time at the end of the last request."""
        self._rows: list[list[int]] = []
        """Stages of requests that wait to be counted."""
        self.stages = [Spread(STAGE_S) for _ in STAGES]
        self.finished: dict[str, Spread] = {}
        """Durations of finished requests by kind."""
        self.unfinished: dict[tuple[str, Outcome], Spread] = {}
        """Durations of the others by kind and outcome."""
        self.answers: dict[str, Answers] = {}
        self.gap = Spread(GAP_S)
        """The longest pause between two tokens of finished requests."""
        self.ended: Counter[tuple[Outcome, int, Evidence]] = Counter()
        """Requests that did not finish, by outcome, hundreds of the status, and evidence."""
        self.lost: Counter[str] = Counter()
        """Engines that lost a request, by how it went on."""
        self.blocked_us = 0
        """Time in which these requests were held up by others' prefill."""
        self.in_tokens = 0
        self.out_tokens = 0
        self.cached_tokens = 0
        self.host_tokens = 0
        self.disk_tokens = 0
        self.prefill_tokens = 0
        self.recomputed_tokens = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.preemptions = 0

    def observe(self, ledger: Ledger) -> None:
        """Count one request."""
        self.last_us = ledger.began_unix_us + ledger.wall_us
        if ledger.engine:
            rows = self._rows
            rows.append(ledger.us)
            if len(rows) >= SETTLE:
                self.settle()
        else:
            self._observe_early(ledger)
        if ledger.outcome is _FINISHED:
            self._observe_finished(ledger)
        else:
            self._observe_unfinished(ledger)
        self._add_tokens(ledger)

    def settle(self) -> None:
        """Count what waits."""
        # A stage that took no time counts as such, or the quantiles of waiting would be those of the unlucky only.
        for spread, column in zip(self.stages, zip(*self._rows, strict=True), strict=False):
            spread.take(column)
        self._rows.clear()
        for spread in (self.gap, *self.finished.values(), *self.unfinished.values()):
            spread.settle()
        for answers in self.answers.values():
            answers.first.settle()
            answers.each.settle()

    def _observe_early(self, ledger: Ledger) -> None:
        """Count a request that reached no engine: those stages only in which it was."""
        for spread, us in zip(self.stages, ledger.us, strict=True):
            if us:
                spread.take((us,))

    def _observe_finished(self, ledger: Ledger) -> None:
        kind, wall_us, ttft_us = _kind(ledger), ledger.wall_us, ledger.ttft_us
        whole = self.finished.get(kind)
        if whole is None:
            whole = self.finished[kind] = Spread(WHOLE_S)
            self.answers[kind] = Answers()
        whole.put(wall_us)
        if not ttft_us:
            return
        answers = self.answers[kind]
        answers.first.put(ttft_us)
        tokens = ledger.completion_tokens / (len(ledger.choices) or 1)
        if tokens > 1:
            answers.each.put((wall_us - ttft_us) / (tokens - 1))
        if ledger.max_token_gap_us:
            self.gap.put(ledger.max_token_gap_us)

    def _observe_unfinished(self, ledger: Ledger) -> None:
        self.ended[ledger.outcome, ledger.status // 100, evidence_of(ledger)] += 1
        key = _kind(ledger), ledger.outcome
        whole = self.unfinished.get(key)
        if whole is None:
            whole = self.unfinished[key] = Spread(WHOLE_S)
        whole.take((ledger.wall_us,))

    def _add_tokens(self, ledger: Ledger) -> None:
        self.in_tokens += ledger.prompt_tokens
        self.out_tokens += ledger.completion_tokens
        self.cached_tokens += ledger.cached_tokens
        self.host_tokens += ledger.host_tokens
        self.disk_tokens += ledger.disk_tokens
        self.prefill_tokens += ledger.prefill_tokens
        if ledger.recomputed_tokens or ledger.preemptions:
            self.recomputed_tokens += ledger.recomputed_tokens
            self.preemptions += ledger.preemptions
        if ledger.drafted_tokens:
            self.drafted_tokens += ledger.drafted_tokens
            self.accepted_tokens += ledger.accepted_tokens
        for blocker in ledger.blocked_by:
            self.blocked_us += blocker.us
        for attempt in ledger.attempts:
            self.lost[attempt.way if attempt.way in WAYS else "anew"] += 1


def _kind(ledger: Ledger) -> str:
    return ledger.kind if ledger.kind in KINDS else ""
