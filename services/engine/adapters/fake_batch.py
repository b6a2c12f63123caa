"""The fake engine's scheduler: who runs, who waits, what a step costs. Pure: no loop, no clock.

Jobs start by priority, then arrival, when their choices and all the blocks they will need are free; none is preempted.
A step computes one token of each running choice and up to a chunk of waiting prompts.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from typing_extensions import override

from services.engine.ports import Load, Piece, Sink
from services.engine.settings import FakeSettings
from shared.messages import DeltaExtra, Priority, Usage

_RANKS = {priority: rank for rank, priority in enumerate(Priority)}


class Task:
    """A job in the batch or before it."""

    __slots__ = ("blocks", "choices", "completion_tokens", "key", "prefill_left", "prompt_tokens")

    def __init__(
        self,
        key: str,
        *,
        prompt_tokens: int,
        blocks: int,
        choices: list[Iterator[Piece]],
        prior_tokens: int = 0,
    ) -> None:
        self.key = key
        self.prompt_tokens = prompt_tokens
        self.prefill_left = prompt_tokens + prior_tokens
        self.blocks = blocks
        self.choices = choices
        self.completion_tokens = 0

    def advance(self, sink: Sink) -> bool:
        """Hand over one piece of each choice; return whether the job is complete."""
        going = []
        for choice in self.choices:
            piece = next(choice)
            self.completion_tokens += len(piece.token_ids)
            if piece.finish is None:
                going.append(choice)
            elif not going and choice is self.choices[-1]:
                piece = self._with_usage(piece)
            sink(self.key, piece)
        self.choices = going
        return not going

    def _with_usage(self, piece: Piece) -> Piece:
        old = piece.extra or DeltaExtra()
        usage = Usage(prompt_tokens=self.prompt_tokens, completion_tokens=self.completion_tokens)
        extra = DeltaExtra(
            logprobs=old.logprobs,
            tool_calls=old.tool_calls,
            stop_reason=old.stop_reason,
            usage=usage,
        )
        return Piece(piece.choice, piece.text, piece.token_ids, piece.finish, extra)


class Batch:
    """Running and waiting jobs, and the block pool."""

    def __init__(self, settings: FakeSettings) -> None:
        self._settings = settings
        self._arrivals = 0
        self._waiting: list[tuple[int, int, Task]] = []
        self._running: dict[str, Task] = {}
        self._tasks: dict[str, Task] = {}
        self._running_choices = 0
        self._free_blocks = settings.total_blocks
        self._prefilling: list[tuple[Task, int]] = []

    @override
    def __repr__(self) -> str:
        return f"<Batch {len(self._running)} running, {len(self._tasks)} in all>"

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._tasks)

    def __contains__(self, key: str) -> bool:
        return key in self._tasks

    def add(self, task: Task, priority: Priority) -> None:
        """Let a job wait for its turn."""
        self._arrivals += 1
        self._tasks[task.key] = task
        insort(self._waiting, (_RANKS[priority], self._arrivals, task))

    def remove(self, key: str) -> None:
        """Forget a job at once; an unknown one changes nothing."""
        task = self._tasks.pop(key, None)
        if task is None:
            return
        if self._running.pop(key, None) is not None:
            self._free_blocks += task.blocks
        else:
            self._waiting = [entry for entry in self._waiting if entry[2] is not task]

    def begin_step(self) -> float:
        """Start who fits and choose the prompt chunks; return how long the step takes."""
        self._start_waiting()
        settings = self._settings
        budget = settings.chunk_tokens
        self._prefilling = []
        for task in self._running.values():
            if task.prefill_left and budget:
                chunk = min(task.prefill_left, budget)
                budget -= chunk
                self._prefilling.append((task, chunk))
        chunk_tokens = settings.chunk_tokens - budget
        return (
            settings.step_s
            + settings.stream_step_s * self._count_choices()
            + chunk_tokens / settings.prefill_tokens_per_s
        )

    def end_step(self, sink: Sink) -> None:
        """Hand over what the step computed."""
        for task, chunk in self._prefilling:
            task.prefill_left -= chunk
        for task in list(self._running.values()):
            if not task.prefill_left and task.advance(sink):
                self.remove(task.key)

    def load(self, *, step: int, step_age_s: float) -> Load:
        """Return how busy the batch is."""
        running = self._count_choices()
        total = sum(len(task.choices) for task in self._tasks.values())
        return Load(
            running=running,
            waiting=total - running,
            free_blocks=self._free_blocks,
            step=step,
            step_age_s=step_age_s,
        )

    def _start_waiting(self) -> None:
        room = self._settings.max_streams - self._count_choices()
        while self._waiting:
            task = self._waiting[0][2]
            if len(task.choices) > room or task.blocks > self._free_blocks:
                return
            del self._waiting[0]
            room -= len(task.choices)
            self._free_blocks -= task.blocks
            self._running[task.key] = task

    def _count_choices(self) -> int:
        return sum(len(task.choices) for task in self._running.values())
