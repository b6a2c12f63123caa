"""A backend that is made late: the loop goes on meanwhile, and no thread is left when it starts."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from services.engine.adapters.fake import FakeEngine
from services.engine.adapters.late import LateEngine
from services.engine.ports import EngineFailedError
from services.engine.settings import FakeSettings
from services.engine.stepbook import StepBook
from tests.support.engine_rig import Pieces, is_last, job_of


class Started(FakeEngine):
    """Notes how many threads there are when it starts."""

    threads = 0

    async def start(self, sink):
        self.threads = threading.active_count()
        return await super().start(sink)


def test_the_loop_goes_on_while_it_is_made_and_no_thread_is_left_for_a_fork():
    backend = Started(FakeSettings(step_s=0.001))

    def make(_book: StepBook) -> FakeEngine:
        time.sleep(0.2)
        return backend

    async def scenario():
        engine, before, beats = LateEngine(make), threading.active_count(), 0
        starting = asyncio.get_running_loop().create_task(engine.start(Pieces()))
        while not starting.done():
            beats += 1
            await asyncio.sleep(0.01)

        assert beats > 5
        assert backend.threads == before
        assert "fake" == (await starting).backend
        await engine.stop()

    asyncio.run(scenario())


def test_once_started_it_is_the_backend():
    async def scenario():
        backend = FakeEngine(FakeSettings(step_s=0.001))
        engine, pieces = LateEngine(lambda _book: backend), Pieces()
        await engine.start(pieces)
        job, cancelled = job_of(max_tokens=4), job_of(max_tokens=4000, ignore_eos=True)

        await engine.submit(job)
        await engine.submit(cancelled)
        engine.cancel(cancelled.key)
        assert is_last((await pieces.whole(job.key))[-1])
        assert engine.load() == backend.load()
        backend.die("gone")
        assert await engine.failed() == "gone"
        await engine.stop()

    asyncio.run(scenario())


def test_what_cannot_be_made_fails_the_start():
    def make(_book: StepBook) -> FakeEngine:
        raise EngineFailedError("vLLM cannot be imported")

    async def scenario():
        engine = LateEngine(make)
        with pytest.raises(EngineFailedError, match="imported"):
            await engine.start(Pieces())
        await engine.stop()

    asyncio.run(scenario())
