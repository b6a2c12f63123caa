"""Session fixtures of the real parts that take long to make: the default model's directory, and one `vllm serve` on it.

A conftest that wants them imports them by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.console.model_fetch import fetch
from services.console.settings import read_settings
from tests.support.vllm_serve import VllmServe


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Directory of the default model, made at the first use in the place where `headrace model fetch` puts it."""
    settings = read_settings()
    made = fetch("smollm2", settings.models, env=settings.environment, progress=lambda _: None)
    return asyncio.run(made).path


@pytest.fixture(scope="session")
def vllm_serve(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServe]:
    """A real vLLM server, running."""
    server = VllmServe(smollm2, tmp_path_factory.mktemp("vllm"))
    server.start()
    yield server
    server.stop()
