"""What happened since the last batch of news: who entered which stage, and the steps added up."""

from __future__ import annotations

from typing_extensions import override

from services.engine.steps.step import Span
from shared.ids import RequestId
from shared.messages import Move, StepSummary

MAX_MOVES = 4096
"""In one batch; more are counted and dropped: views want to be current, not complete."""

_NOBODY = RequestId("")


class StepNews:
    """Gathers for the next batch."""

    def __init__(self) -> None:
        self._moves: list[tuple[RequestId, int, int]] = []
        self._dropped = 0
        self._sum = _Sum()

    @override
    def __repr__(self) -> str:
        return f"<StepNews {self._sum.steps} steps, {len(self._moves)} moves>"

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self._sum.steps and not self._moves

    def move(self, request: RequestId, stage: int, at_us: int) -> None:
        """Note that a request entered a stage (an index into `STAGES`)."""
        if len(self._moves) < MAX_MOVES:
            self._moves.append((request, stage, at_us))
        else:
            self._dropped += 1

    def plain(self, decodes: int, busy_us: int) -> None:
        """Add a step in which all is as in the one before."""
        added = self._sum
        added.steps += 1
        added.busy_us += busy_us
        added.decode_tokens += decodes
        added.largest_batch = max(added.largest_batch, decodes)
        if busy_us > added.longest_us:
            added.longest_us, added.longest_by = busy_us, _NOBODY

    def step(self, span: Span, *, is_new_mode: bool) -> None:
        """Add a step."""
        step, added = span.step, self._sum
        busy_us, choices = span.busy_us, step.decodes + len(step.prefills)
        added.steps += 1
        added.busy_us += busy_us
        added.wait_us += span.wait_us
        added.decode_tokens += step.decodes
        added.mode_changes += is_new_mode
        added.largest_batch = max(added.largest_batch, choices)
        if busy_us > added.longest_us:
            added.longest_us, added.longest_by = busy_us, span.blocker
        added.preemptions += len(step.preempted)
        for chunk in step.prefills:
            added.prefill_tokens += chunk.tokens
            added.recomputed_tokens += chunk.again
            added.decode_tokens += chunk.is_last
        for draft in step.drafts:
            added.decode_tokens += draft.accepted

    def take(self, now_us: int, mode: str) -> tuple[list[Move], StepSummary, int]:
        """Return moves, summary and the number of moves dropped, and begin anew. `mode`: of the last step."""
        moves = [Move(name, stage, max(0, now_us - at_us)) for name, stage, at_us in self._moves]
        summary, dropped = self._sum.told(mode), self._dropped
        self._moves.clear()
        self._dropped = 0
        self._sum = _Sum()
        return moves, summary, dropped


class _Sum:
    """What will be a `StepSummary`: its fields."""

    def __init__(self) -> None:
        self.steps = self.busy_us = self.wait_us = 0
        self.prefill_tokens = self.decode_tokens = self.recomputed_tokens = 0
        self.preemptions = self.largest_batch = self.longest_us = self.mode_changes = 0
        self.longest_by = _NOBODY

    def told(self, mode: str) -> StepSummary:
        """Return the message."""
        return StepSummary(**self.__dict__, mode=mode if self.steps else "")
