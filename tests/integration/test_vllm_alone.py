"""An engine without a zygote, as in a container: it is on the bus while it still imports vLLM."""

from __future__ import annotations

import asyncio

import pytest

from shared.messages import EngineHeartbeat, EngineState
from shared.natsbus import NatsBus
from shared.settings import NatsSettings
from tests.support.engine_process import EngineProcess

START_S = 240.0
"""A quiet machine imports for ten seconds."""

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300)]


def test_it_says_that_it_is_starting_and_then_why_it_cannot(nats_server, tmp_path):
    async def scenario():
        async with asyncio.TaskGroup() as group:
            bus = await NatsBus.connect(NatsSettings(url=nats_server.url), group=group, name="test")
            none = tmp_path / "none"
            engine = EngineProcess(
                nats_server, tmp_path, "--backend", "vllm", "--vllm-model", str(none)
            )
            try:
                await bus.subscribe(EngineHeartbeat, engine.on_beat, service=engine.service)
                await engine.state(EngineState.STARTING)
                failed = await engine.state(EngineState.FAILED, deadline_s=START_S)

                assert str(none) in failed.reason
                assert sum(beat.state is EngineState.STARTING for beat in engine.beats) >= 3
            finally:
                engine.kill()
                await bus.close(drain_s=0.5)

    asyncio.run(scenario())
