"""The engines that the contract of the engine port is tested on; each serves all tests of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from services.engine.adapters.fake import FakeEngine
from services.engine.adapters.openai_url import OpenAiEngine
from services.engine.settings import FakeSettings, OpenAiSettings
from shared.messages import TextPrompt
from tests.support.engine_rig import EngineRig, job_of, started
from tests.support.openai_server import OpenAiServer

REFERENCE = b'{"$ref": "#/$defs/elsewhere"}'


@pytest.fixture(scope="session")
def fake_engine() -> Iterator[EngineRig]:
    """The fake, a step of 1 ms."""
    settings = FakeSettings(step_s=0.001, answer_tokens=60)
    with started(FakeEngine(settings), unsupported=job_of(json_schema=REFERENCE)) as rig:
        yield rig


@pytest.fixture(scope="session")
def openai_engine() -> Iterator[EngineRig]:
    """The OpenAI adapter before a small server made by hand, on the same loop."""
    server = OpenAiServer()
    with asyncio.Runner() as runner:
        url = runner.run(server.start())
        missing = job_of(TextPrompt(text="!missing"))
        with started(
            OpenAiEngine(OpenAiSettings(url=url)), runner=runner, unsupported=missing
        ) as rig:
            yield rig
        runner.run(server.stop())


@pytest.fixture(scope="session", params=["fake", "openai"])
def engine_rig(request: pytest.FixtureRequest) -> EngineRig:
    """Each backend in turn."""
    rig: EngineRig = request.getfixturevalue(f"{request.param}_engine")
    return rig
