"""The one real vLLM engine that a test run shares: SmolLM2 in this process, its core in a child."""

from __future__ import annotations

import json
import warnings
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.engine.ports import Job, RefusedError
from services.engine.settings import VllmSettings
from shared.messages import ChatPrompt
from tests.support.engine_rig import EngineRig, job_of, started

MAX_MODEL_LEN = 1024
ANY_TOOL = b'[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]'


def settings_of(model: Path, **changes: Any) -> VllmSettings:
    """Return settings for tests: a short context, a small pool, no compilation, numbers that do not depend on the company in a batch."""
    made: dict[str, Any] = {
        "model": str(model),
        "dtype": "float32",
        "max_model_len": MAX_MODEL_LEN,
        "kv_cache_bytes": 512 << 20,
        "max_num_seqs": 64,
        "enforce_eager": True,
    }
    return VllmSettings(**(made | changes))


def imported_vllm() -> None:
    """Import what an engine needs. vLLM and its libraries warn of each other's deprecations, which is not ours to fail for."""
    from services.engine.adapters import vllm_preload  # noqa: PLC0415 - ten seconds, for tests that need it

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vllm_preload.preload()


def chat(*contents: str, **fields: Any) -> ChatPrompt:
    """Return a conversation of the user's and the assistant's words in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": each} for index, each in enumerate(contents)]
    return ChatPrompt(messages_json=json.dumps(messages).encode(), **fields)


def tokenizer_of(rig: EngineRig) -> Any:
    """Return vLLM's tokenizer."""
    return rig.engine._llm.get_tokenizer()  # type: ignore[attr-defined] # of our adapter


async def told(submit: Awaitable[int]) -> RefusedError | None:
    """Return why a submit was refused, if it was."""
    try:
        await submit
    except RefusedError as error:
        return error
    return None


def refused(rig: EngineRig, job: Job) -> RefusedError:
    """Submit a job that must be refused."""
    refusal = rig.run(told(rig.engine.submit(job)))
    assert refusal is not None
    return refusal


@pytest.fixture(scope="session")
def vllm_rig(smollm2: Path) -> Iterator[EngineRig]:
    """The engine, running. Its model's template knows no tools."""
    imported_vllm()
    from services.engine.adapters.vllm_engine import VllmEngine  # noqa: PLC0415 - see above

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = VllmEngine(settings_of(smollm2))
        with started(engine, unsupported=job_of(chat("hi", tools_json=ANY_TOOL))) as rig:
            yield rig
