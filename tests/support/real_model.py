"""Session fixtures of the real parts that take long to make: the default model's directory, and one `vllm serve` on it.

A conftest that wants them imports them by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from services.console.settings import read_settings
from shared.models.fetch import fetch
from tests.support.vllm_serve import VllmServe


class ModelFetch(NamedTuple):
    """How the run came by the default model."""

    path: Path
    was_there: bool
    steps: list[str]
    """What two fetches at the same time said."""


@pytest.fixture(scope="session")
def model_fetch() -> ModelFetch:
    """The default model, in the place where `headrace model fetch` puts it; made by two fetches at once where it is not there."""
    settings = read_settings()
    path = settings.models / "smollm2"
    was_there = path.exists()
    steps: list[str] = []

    async def make() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                made = fetch(
                    "smollm2", settings.models, env=settings.environment, progress=steps.append
                )
                group.create_task(made)

    asyncio.run(make())
    return ModelFetch(path, was_there, steps)


@pytest.fixture(scope="session")
def smollm2(model_fetch: ModelFetch) -> Path:
    """Directory of the default model."""
    return model_fetch.path


@pytest.fixture(scope="session")
def vllm_serve(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServe]:
    """A real vLLM server, running."""
    server = VllmServe(smollm2, tmp_path_factory.mktemp("vllm"))
    server.start()
    yield server
    server.stop()
