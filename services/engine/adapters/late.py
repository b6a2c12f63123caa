"""A backend whose imports take long: it is made in a thread when it starts, so that the engine's heartbeats go on meanwhile.

The thread is gone before the backend starts, since vLLM's core is forked then. Knows no backend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from typing_extensions import override

from services.engine.ports import InferenceEngine, Job, Limits, Load, Sink
from services.engine.stepbook import StepBook
from shared.messages import Spent


class LateEngine:
    """Implements `InferenceEngine` by the backend that `make` returns."""

    def __init__(self, make: Callable[[StepBook], InferenceEngine]) -> None:
        self._make = make
        self.book = StepBook()
        """The backend's, there before it."""
        self._engine: InferenceEngine | None = None

    @override
    def __repr__(self) -> str:
        return f"<LateEngine {self._engine!r}>"

    async def start(self, sink: Sink) -> Limits:
        """Make the backend and start it. An interruption waits for imports under way: they cannot be left."""
        with ThreadPoolExecutor(1, thread_name_prefix="imports") as thread:
            made = await asyncio.get_running_loop().run_in_executor(thread, self._make, self.book)
        self._engine = made
        return await made.start(sink)

    async def submit(self, job: Job) -> int:
        """See `InferenceEngine`."""
        return await self._started.submit(job)

    def cancel(self, key: str) -> None:
        """See `InferenceEngine`."""
        self._started.cancel(key)

    def spent(self, key: str) -> Spent | None:
        """See `InferenceEngine`."""
        return self._started.spent(key)

    def load(self) -> Load:
        """See `InferenceEngine`."""
        return self._started.load()

    async def failed(self) -> str:
        """See `InferenceEngine`."""
        return await self._started.failed()

    async def stop(self) -> None:
        """See `InferenceEngine`."""
        if self._engine is not None:
            await self._engine.stop()

    @property
    def _started(self) -> InferenceEngine:
        assert self._engine is not None, "nothing is asked of a backend before it has started"
        return self._engine
