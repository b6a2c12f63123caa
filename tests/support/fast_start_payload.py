"""A zygote whose children start a real vLLM engine, answer, and go on generating until somebody ends them."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
from pathlib import Path

from services.engine import zygote
from services.engine.ports import EngineFailedError
from services.engine.settings import VllmSettings
from tests.support.zygote_payload import say

PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
LONG_TOKENS = 900


def payload(argv: list[str]) -> int:
    """Be an engine without a shell around it; the argument is the model's directory."""
    return asyncio.run(_serve(argv[0]))


async def _serve(model: str) -> int:
    from vllm import SamplingParams  # noqa: PLC0415 - preloaded
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415
    from vllm.v1.engine.exceptions import EngineDeadError  # noqa: PLC0415

    from services.engine.adapters.vllm_launch import start_async_llm  # noqa: PLC0415

    async def answer(llm: AsyncLLM, tokens: int) -> str:
        params = SamplingParams(
            max_tokens=tokens, temperature=0.0, ignore_eos=tokens == LONG_TOKENS
        )
        text = ""
        async for output in llm.generate(PROMPT, params, request_id=f"{tokens}"):
            text = output.outputs[0].text
        return text

    settings = VllmSettings(
        model=model,
        max_model_len=1024,
        kv_cache_bytes=256 << 20,
        max_num_seqs=8,
        enforce_eager=True,
    )
    ticks = asyncio.get_running_loop().create_task(_count())
    try:
        llm = await start_async_llm(settings)
    except EngineFailedError as error:
        say("failed", str(error).replace("\n", " "))
        return 1
    finally:
        ticks.cancel()
    say("answer", await answer(llm, 12))
    say("core", _core())
    try:
        while True:
            await answer(llm, LONG_TOKENS)
    except EngineDeadError:
        say("dead", "EngineDeadError")
    await asyncio.to_thread(llm.shutdown)
    return 0


def _core() -> str:
    """Return the process id of the core."""
    own = os.getpid()
    children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
    return " ".join(
        pid for pid in children if "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text()
    )


async def _count() -> None:
    """Say how often the loop came round while the core was starting."""
    for turn in itertools.count():
        say("turns", turn)
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    os._exit(zygote.run(socket.socket(fileno=int(sys.argv[1][5:])), payload, "vllm"))
