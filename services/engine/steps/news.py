"""What happened since the last batch of news: who entered which stage, and the steps added up."""

from __future__ import annotations

from typing_extensions import override

from services.engine.steps.step import Span
from shared.ids import RequestId
from shared.messages import Move, StepSummary

MAX_MOVES = 4096
"""In one batch; more are counted and dropped: views want to be current, not complete."""


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

    def step(self, span: Span, *, is_new_mode: bool) -> None:
        """Add a step."""
        step, added = span.step, self._sum
        busy_us, choices = span.busy_us, step.decodes + len(step.prefills)
        added.steps += 1
        added.busy_us += busy_us
        added.wait_us += span.wait_us
        added.decode_tokens += step.decodes
        added.mode = step.mode
        added.mode_changes += is_new_mode
        added.largest_batch = max(added.largest_batch, choices)
        if busy_us > added.longest_us:
            added.longest_us, added.longest_by = busy_us, span.blocker
        if step.prefills or step.preempted or step.drafts:
            added.preemptions += len(step.preempted)
            added.prefill_tokens += sum(each.tokens for each in step.prefills)
            added.recomputed_tokens += sum(each.again for each in step.prefills)
            added.decode_tokens += sum(each.is_last for each in step.prefills)
            added.decode_tokens += sum(each.accepted for each in step.drafts)

    def take(self, now_us: int) -> tuple[list[Move], StepSummary, int]:
        """Return moves, summary and the number of moves dropped, and begin anew."""
        moves = [Move(name, stage, max(0, now_us - at_us)) for name, stage, at_us in self._moves]
        summary, dropped = self._sum.told(), self._dropped
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
        self.longest_by = RequestId("")
        self.mode = ""

    def told(self) -> StepSummary:
        """Return the message."""
        return StepSummary(**self.__dict__)
