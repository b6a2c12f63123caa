"""What is remembered of steps and of finished requests: enough to answer for each step of any request of late.

A request's steps are the engine's steps from its first to its last, so these are kept once for all, and of a request only where it
began and ended and which step made which token. A request costs a hundred bytes and no work for each step, whatever its length.
"""

from __future__ import annotations

import struct
from array import array

import msgspec
from typing_extensions import override

from services.engine.steps.recent import Recent
from shared.ids import EngineId, RequestId
from shared.messages import StepDetail, StepSpan, TokenRun

KEPT_STEPS = 1 << 19
"""7 MiB; at 10 ms a step almost an hour and a half."""
KEPT_REQUEST_BYTES = 8 << 20
_REQUEST_BYTES = 330
"""Of one request: its place in the dictionary, its name, and the objects."""
_RUN_BYTES = 140
_EDGE = 20
"""The first and the last one in this many steps are told one by one."""
_MAX_SPANS = 64
_MOST_MS = 65504.0
"""Largest half float."""
_MOST_BATCH = 0xFFFF

Runs = list[list[tuple[int, int, int]]]
"""By choice: first token, step, tokens a step."""


class Life(msgspec.Struct, frozen=True, gc=False):
    """The steps of a request."""

    first_step: int
    last_step: int
    began_us: int
    """When its first chunk began: it may have been admitted in the middle of a step."""
    runs: Runs


class StepLog:
    """The last `kept_steps` steps, and finished requests within their bound."""

    def __init__(
        self, *, kept_steps: int = KEPT_STEPS, kept_request_bytes: int = KEPT_REQUEST_BYTES
    ) -> None:
        self._kept_steps = kept_steps
        self._ends = array("q")
        self._batches = array("H")
        self._prefills = array("I")
        self._next = 1
        """Number of the step to come."""
        self._lives: Recent[RequestId, Life] = Recent(kept_request_bytes)

    @override
    def __repr__(self) -> str:
        return f"<StepLog {len(self._ends)} steps, {len(self._lives)} requests>"

    @property
    def size(self) -> int:
        """Bytes kept, about."""
        return len(self._ends) * 14 + self._lives.weight

    def add(self, number: int, end_us: int, batch: int, prefill_tokens: int) -> None:
        """Remember a step. Numbers that were left out count as steps of no length."""
        if number != self._next:
            self._fill(number, end_us)
        batch = min(batch, _MOST_BATCH)
        if len(self._ends) < self._kept_steps:
            self._ends.append(end_us)
            self._batches.append(batch)
            self._prefills.append(prefill_tokens)
        else:
            place = (number - 1) % self._kept_steps
            self._ends[place], self._batches[place] = end_us, batch
            self._prefills[place] = prefill_tokens
        self._next = number + 1

    def remember(self, request: RequestId, life: Life) -> None:
        """Keep a finished request; of several streams of one the last."""
        runs = sum(map(len, life.runs))
        self._lives.put(request, life, _REQUEST_BYTES + runs * _RUN_BYTES)

    def recall(self, request: RequestId) -> Life | None:
        """Return a finished request, if it is still known."""
        return self._lives.get(request)

    def detail(self, engine: EngineId, request: RequestId, life: Life | None) -> StepDetail:
        """Return the steps of a request; unknown where they are no longer remembered."""
        oldest = self._next - len(self._ends)
        if life is None or not oldest <= life.first_step <= life.last_step < self._next:
            return StepDetail(engine=engine, request=request)
        steps = range(life.first_step, life.last_step + 1)
        edge = min(-(-len(steps) // _EDGE), len(steps) // 2)
        head, tail = steps[: edge or 1], steps[max(1, len(steps) - edge) :]
        return StepDetail(
            engine=engine,
            request=request,
            is_known=True,
            began_at=life.began_us / 1e6,
            first_step=life.first_step,
            last_step=life.last_step,
            head_ms=self._ms(head, life),
            head_batch=self._batch(head),
            middle=self._middle(range(head.stop, tail.start), life),
            tail_ms=self._ms(tail, life),
            tail_batch=self._batch(tail),
            runs=[[TokenRun(*run) for run in choice] for choice in life.runs],
        )

    def _fill(self, number: int, end_us: int) -> None:
        """Put steps of no length before this number."""
        last_us = self._ends[self._place(self._next - 1)] if self._ends else end_us
        if number - self._next > self._kept_steps:
            self._next = number - self._kept_steps
        while self._next < number:
            self.add(self._next, last_us, 0, 0)

    def _place(self, number: int) -> int:
        return (number - 1) % self._kept_steps

    def _begin_us(self, step: int, life: Life) -> int:
        """Return when a step of a request began: with the end of the one before."""
        return life.began_us if step == life.first_step else self._ends[self._place(step - 1)]

    def _ms(self, steps: range, life: Life) -> bytes:
        values = [
            min((self._ends[self._place(step)] - self._begin_us(step, life)) / 1e3, _MOST_MS)
            for step in steps
        ]
        return struct.pack(f"<{len(values)}e", *values)

    def _batch(self, steps: range) -> bytes:
        values = [self._batches[self._place(step)] for step in steps]
        return struct.pack(f"<{len(values)}H", *values)

    def _middle(self, steps: range, life: Life) -> list[StepSpan]:
        length = -(-len(steps) // _MAX_SPANS) or 1
        return [
            self._span(steps[begin : begin + length], life)
            for begin in range(0, len(steps), length)
        ]

    def _span(self, steps: range, life: Life) -> StepSpan:
        begin_us = self._begin_us(steps[0], life)
        places = [self._place(step) for step in steps]
        return StepSpan(
            first_step=steps[0],
            steps=len(steps),
            begin_us=begin_us - life.began_us,
            us=self._ends[places[-1]] - begin_us,
            batch_size=sum(self._batches[place] for place in places) / len(places),
            prefill_tokens=sum(self._prefills[place] for place in places),
        )
