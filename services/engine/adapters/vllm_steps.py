"""The front's end of the steps' records: each one goes to the book, and then the pieces that wait for it go out.

vLLM's output loop hands out a step's outputs first and its statistics right after, in the same turn of the loop unless there are more
than 128 outputs. The first and the last piece of an answer say where its time went, so they wait for the record of their step.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from typing_extensions import override

from services.engine.adapters import vllm_worker
from services.engine.adapters.vllm_scheduler import KEY, scheduler_name
from services.engine.stepbook import StepBook
from services.engine.steps.step import Step
from shared import logs
from shared.clock import Clock
from shared.messages import Spent, Stage

_decode = msgspec.msgpack.Decoder(Step).decode
_log = logs.get("vllm")

OURS = {scheduler_name(is_async=is_async) for is_async in (False, True)}
"""Schedulers that make records."""


class Waiting(Protocol):
    """An answer whose pieces wait for the record of their step."""

    def release(self) -> None:
        """Hand them out."""
        ...


class StepGate:
    """Where each record arrives."""

    def __init__(self, book: StepBook, clock: Clock, *, sees_steps: bool = True) -> None:
        """`sees_steps`: whether the scheduler is one of ours; else the stages are what shows from outside."""
        self.book = book
        self._clock = clock
        self._sees_steps = sees_steps
        self._waiting: list[Waiting] = []
        self._backend = ""
        self._modes: dict[str, str] = {}

    @override
    def __repr__(self) -> str:
        return f"<StepGate {len(self._waiting)} waiting>"

    def name_backend(self, name: str, *, kind: str) -> None:
        """Set the attention backend's name, and the kind of step where the record does not tell."""
        self._modes = {"": f"{name}/{kind}"}
        self._backend = name

    def enqueue(self, key: str, ref: str) -> None:
        """Note that a choice goes to the core now."""
        if self._sees_steps:
            self.book.enqueue(key, ref, at=self._clock())
        else:
            self.book.enter(key, Stage.PREFILL, at=self._clock())

    def begin(self, key: str) -> None:
        """Note that the first piece of an answer is there."""
        if not self._sees_steps:
            self.book.enter(key, Stage.DECODE, at=self._clock())

    def spent(self, key: str, tokens: int) -> Spent | None:
        """Return what the time of a job went to until now."""
        return self.book.spent(key, until=self._clock(), decode_tokens=tokens)

    def close(self, key: str) -> None:
        """End the account of a job."""
        self.book.close(key, at=self._clock())

    def wait(self, answer: Waiting) -> None:
        """Have an answer released with the next record."""
        self._waiting.append(answer)

    def arrive(self, connector_stats: dict[str, Any] | None) -> None:
        """Take what came with a step's statistics, and release who waits; also where nothing came. Never raises."""
        record = connector_stats.pop(KEY, None) if connector_stats else None
        if record is not None:
            try:
                step = _decode(record)
            except msgspec.MsgspecError as error:
                _log.error("step_record_unread", error=str(error))
            else:
                step.mode = self._mode(step.mode)
                self.book.feed(step)
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer.release()

    def _mode(self, kind: str) -> str:
        known = self._modes.get(kind)
        if known is None:
            known = self._modes[kind] = f"{self._backend}/{kind}"
        return known


async def step_gate(llm: Any, book: StepBook, clock: Clock) -> StepGate:
    """Return the gate for an `AsyncLLM`, which says once what its steps are computed with."""
    config = llm.vllm_config
    parallel, scheduler = config.parallel_config, config.scheduler_config
    gate = StepGate(book, clock, sees_steps=scheduler.scheduler_cls in OURS)
    names: set[str] = set()
    if parallel.worker_extension_cls == vllm_worker.NAME:
        for of_worker in await llm.collective_rpc(vllm_worker.ASK_BACKENDS):
            names.update(of_worker)
    gate.name_backend(
        "+".join(sorted(names)), kind="eager" if config.model_config.enforce_eager else "graph"
    )
    return gate
