"""What the contracts are tested on: engines that serve all tests of a run, and buses in memory and on a real server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from services.engine.adapters.fake import FakeEngine
from services.engine.adapters.openai_url import OpenAiEngine
from services.engine.settings import FakeSettings, OpenAiSettings
from shared.ids import ServiceName
from shared.messages import TextPrompt
from tests.support.buses import MemoryWorld, NatsWorld, World
from tests.support.engine_rig import EngineRig, job_of, started
from tests.support.guarded_nats import guarded
from tests.support.nats_server import NatsServer
from tests.support.openai_server import OpenAiServer
from tests.support.real_model import smollm2, vllm_serve
from tests.support.vllm_serve import VllmServe

__all__ = ["smollm2", "vllm_serve"]

_numbers = itertools.count()

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


@pytest.fixture(scope="session")
def vllm_engine(vllm_rig: EngineRig) -> EngineRig:
    """Real vLLM in this process."""
    return vllm_rig


@pytest.fixture(scope="session")
def served_engine(vllm_serve: VllmServe) -> Iterator[EngineRig]:
    """The OpenAI adapter before a real vLLM server."""
    with started(OpenAiEngine(OpenAiSettings(url=vllm_serve.url))) as rig:
        yield rig


@pytest.fixture(
    scope="session",
    params=[
        *("fake", "openai"),
        *(pytest.param(name, marks=pytest.mark.vllm) for name in ("vllm", "served")),
    ],
)
def engine_rig(request: pytest.FixtureRequest) -> EngineRig:
    """Each backend in turn."""
    rig: EngineRig = request.getfixturevalue(f"{request.param}_engine")
    return rig


@pytest.fixture(scope="session", params=["fake", pytest.param("vllm", marks=pytest.mark.vllm)])
def resuming_rig(request: pytest.FixtureRequest) -> EngineRig:
    """Each backend that resumes."""
    rig: EngineRig = request.getfixturevalue(f"{request.param}_engine")
    assert rig.limits.resumes
    return rig


@pytest.fixture(params=["memory", "nats"])
def world(request: pytest.FixtureRequest, nats_server: NatsServer) -> World:
    """Where buses meet: both kinds pass the same suite."""
    return MemoryWorld() if request.param == "memory" else NatsWorld(nats_server.url)


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server with the users of our own configuration."""
    with guarded(tmp_path_factory.mktemp("guarded")) as server:
        yield server


@pytest.fixture
def service() -> ServiceName:
    """A service of this test's own: the server outlives it, and so do records."""
    return ServiceName(f"records-{next(_numbers)}")
