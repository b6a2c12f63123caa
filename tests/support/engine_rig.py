"""A started backend with its own loop and a sink that keeps everything: what the engine port's contract is tested on.

One rig serves many tests, since a real engine takes long to start: keys are unique, and each test looks at its own only.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from services.engine.ports import InferenceEngine, Job, Limits, Piece, RefusedError
from shared.ids import RequestId
from shared.messages import Priority, Prompt, Sampling, TextPrompt

T = TypeVar("T")

ANSWER_S = 150.0
"""Deadline of one answer; a real model on a busy machine is slow."""


def is_last(piece: Piece) -> bool:
    """Return whether the port promises that nothing comes after this piece."""
    extra = piece.extra
    return extra is not None and (extra.usage is not None or extra.error is not None)


class Pieces:
    """The sink: what came, by job."""

    def __init__(self) -> None:
        self.of: dict[str, list[Piece]] = defaultdict(list)
        self._over: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._first: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def __call__(self, key: str, piece: Piece) -> None:
        self.of[key].append(piece)
        self._first[key].set()
        if is_last(piece):
            self._over[key].set()

    async def whole(self, key: str) -> list[Piece]:
        """Return all pieces of a job once it is over."""
        async with asyncio.timeout(ANSWER_S):
            await self._over[key].wait()
        return self.of[key]

    async def first(self, key: str) -> None:
        """Return once a piece of the job has come."""
        async with asyncio.timeout(ANSWER_S):
            await self._first[key].wait()

    def text(self, key: str, choice: int = 0) -> str:
        """Return the text of a choice so far."""
        return "".join(piece.text for piece in self.of[key] if piece.choice == choice)


class EngineRig:
    """A started backend."""

    def __init__(
        self,
        engine: InferenceEngine,
        *,
        runner: asyncio.Runner,
        limits: Limits,
        pieces: Pieces,
        unsupported: Job | None = None,
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.pieces = pieces
        self.unsupported = unsupported
        """A job that this backend refuses as unsupported; none: it supports all."""
        self._runner = runner

    @property
    def tells_tokens(self) -> bool:
        """Whether token ids and prompt lengths are known exactly."""
        return self.limits.backend != "openai"

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's loop."""
        return self._runner.run(scenario)

    async def answer(self, job: Job) -> list[Piece]:
        """Submit a job and return all its pieces."""
        await self.engine.submit(job)
        return await self.pieces.whole(job.key)

    async def text(self, prompt: Prompt, **sampling: Any) -> str:
        """Return the text of one choice."""
        job = job_of(prompt, **sampling)
        await self.answer(job)
        return self.pieces.text(job.key)


class _Life:
    """Starts the engine and stops it in one task, as the shell does; between the two, tests run on the loop."""

    def __init__(self, engine: InferenceEngine, pieces: Pieces) -> None:
        self._engine = engine
        self._pieces = pieces
        self._enough = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> Limits:
        loop = asyncio.get_running_loop()
        started: asyncio.Future[Limits] = loop.create_future()
        self._task = loop.create_task(self._live(started))
        await asyncio.wait((started, self._task), return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            await self._task
        return started.result()

    async def end(self) -> None:
        self._enough.set()
        assert self._task is not None
        await self._task

    async def _live(self, started: asyncio.Future[Limits]) -> None:
        try:
            started.set_result(await self._engine.start(self._pieces))
            await self._enough.wait()
        finally:
            await self._engine.stop()
            await self._engine.stop()


@contextmanager
def started(
    engine: InferenceEngine, *, runner: asyncio.Runner | None = None, unsupported: Job | None = None
) -> Iterator[EngineRig]:
    """Start a backend, by default on a loop of its own; stop it, twice, at the end."""
    with asyncio.Runner() as own:
        loop = runner or own
        pieces = Pieces()
        life = _Life(engine, pieces)
        limits = loop.run(life.begin())
        try:
            yield EngineRig(
                engine, runner=loop, limits=limits, pieces=pieces, unsupported=unsupported
            )
        finally:
            loop.run(life.end())


_numbers = itertools.count(1)


def job_of(prompt: Prompt | str = "hello", *, key: str = "", **sampling: Any) -> Job:
    """Return a job with a fresh key; its priority is the default one."""
    number = next(_numbers)
    return Job(
        key=key or f"g1:{number}",
        request=RequestId(f"cmpl-{number}"),
        prompt=TextPrompt(text=prompt) if isinstance(prompt, str) else prompt,
        sampling=Sampling(**({"seed": 1} | sampling)),
        priority=Priority.DEFAULT,
        trace={},
    )


def refused(rig: EngineRig, job) -> RefusedError:
    """Submit a job that must be refused; nothing of it may come or stay."""

    async def scenario() -> RefusedError:
        with pytest.raises(RefusedError) as caught:
            await rig.engine.submit(job)
        await asyncio.sleep(0.05)
        assert rig.engine.load().running == 0
        return caught.value

    refusal = rig.run(scenario())
    assert job.key not in rig.pieces.of
    return refusal
