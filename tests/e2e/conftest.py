"""One platform on real vLLM for all end-to-end tests of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.platform import Platform

START_S = 300.0
TEMPLATE = Path(__file__).with_name("tools_template.jinja")
"""SmolLM2's own template knows no tools."""


@pytest.fixture(scope="session")
def real_platform(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """`headrace up` with one engine on the default model, started once."""
    platform = Platform(
        tmp_path_factory.mktemp("real") / "home",
        *("--max-model-len", "1024", "--kv-cache", "512MiB"),
        *("--engine-arg", f"vllm-chat-template={TEMPLATE}"),
        models=smollm2.parent,
    )
    platform.start(timeout_s=START_S)
    yield platform
    assert platform.stop() == 0
