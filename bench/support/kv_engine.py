"""One engine in a process of its own, forked from one that has imported vLLM: what `bench/kv_tiers.py` measures on it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from services.engine.ports import Job, Piece
from services.engine.settings import KvSettings, VllmSettings
from shared.ids import RequestId
from shared.messages import Priority, Sampling, TokensPrompt

POOL_BYTES = 1 << 30
HOST_BYTES = 640 << 20
"""Holds three prompts of 7,000 tokens of SmolLM2."""
ANSWER = 8
WARM_UP = 64


class Asker:
    """Jobs through the engine port, with the times of their pieces."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.at: dict[str, list[float]] = {}
        self._ids: dict[str, list[int]] = {}
        self._first: dict[str, asyncio.Event] = {}
        self._over: dict[str, asyncio.Future[Piece]] = {}

    def sink(self, key: str, piece: Piece) -> None:
        if piece.token_ids:
            self.at[key].append(time.monotonic())
            self._ids[key] += piece.token_ids
            self._first[key].set()
        if piece.extra is not None and (piece.extra.usage or piece.extra.error):
            self._over[key].set_result(piece)

    async def begin(self, prompt: list[int], tokens: int) -> str:
        """Submit a job; return its key."""
        key = f"bench:{len(self.at)}"
        self.at[key], self._ids[key] = [], []
        self._first[key] = asyncio.Event()
        self._over[key] = asyncio.get_running_loop().create_future()
        job = Job(
            key=key,
            request=RequestId(key),
            prompt=TokensPrompt(token_ids=prompt),
            sampling=Sampling(seed=1, temperature=0.0, max_tokens=tokens, ignore_eos=True),
            priority=Priority.DEFAULT,
            trace={},
        )
        await self.engine.submit(job)
        return key

    async def first(self, key: str) -> None:
        """Wait for the first token."""
        await self._first[key].wait()

    async def ask(self, prompt: list[int]) -> dict[str, Any]:
        """Return the time to the first token, where the prompt's blocks came from, and the answer."""
        began = time.monotonic()
        key = await self.begin(prompt, ANSWER)
        last = await self._over[key]
        assert last.extra is not None
        assert last.extra.spent is not None, last.extra.error
        spent = last.extra.spent
        return {
            "ttft_s": self.at[key][0] - began,
            "cached": spent.cached_tokens,
            "host": spent.host_tokens,
            "disk": spent.disk_tokens,
            "stages_ms": [us // 1000 for us in spent.us],
            "answer": self._ids[key],
        }


def prompt_of(seed: int, tokens: int) -> list[int]:
    """Return the tokens of a prompt."""
    drawn = random.Random(seed)
    return [drawn.randrange(1000, 40_000) for _ in range(tokens)]


def in_own_process(work: Callable[[], Awaitable[Any]]) -> Any:
    """Fork, run, and return what came of it; raises `RuntimeError` where nothing did."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        # Logs of the engine are not among the figures.
        os.dup2(2, 1)
        code = 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = asyncio.run(work())  # type: ignore[arg-type]
            with os.fdopen(writer, "w") as out:
                json.dump(result, out)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as told:
        text = told.read()
    os.waitpid(child, 0)
    if not text:
        raise RuntimeError("the engine's process failed; its log says why")
    return json.loads(text)


def settings_of(model: Path, *, fs: Path | None, block: int) -> VllmSettings:
    """Return the engine's settings; `fs`: with vLLM's own tier of files below L2, everything else being the same."""
    from services.engine.adapters import kv_config  # noqa: PLC0415 - after `preload`

    extra: dict[str, Any] = {"block_size": block}
    if fs is not None:
        extra |= kv_config.transfer_args(KvSettings(host_bytes=HOST_BYTES))
        connector = extra["kv_transfer_config"]["kv_connector_extra_config"]
        connector["secondary_tiers"] = [{"type": "fs", "root_dir": str(fs)}]
    return VllmSettings(
        model=str(model),
        dtype="bfloat16",
        max_model_len=8192,
        kv_cache_bytes=POOL_BYTES,
        max_num_seqs=8,
        max_num_batched_tokens=2048,
        enforce_eager=True,
        extra_args=extra,
    )


def kv_of(store: Path | None, *, min_tokens: int = 0) -> KvSettings:
    """Return the settings of our tiers; none without a store."""
    if store is None:
        return KvSettings()
    return KvSettings(host_bytes=HOST_BYTES, store=str(store), min_tokens=min_tokens)


async def with_engine(
    settings: VllmSettings, kv: KvSettings, work: Callable[[Asker], Awaitable[Any]]
) -> Any:
    """Start an engine, warm it up, and do something with it."""
    from services.engine.adapters.vllm_engine import VllmEngine  # noqa: PLC0415 - after `preload`

    engine = VllmEngine(settings, kv=kv)
    asker = Asker(engine)
    began = time.monotonic()
    await engine.start(asker.sink)
    started_s = time.monotonic() - began
    try:
        await asker.ask(prompt_of(random.randrange(1 << 40), WARM_UP))
        told = await work(asker)
        return {**told, "start_s": started_s}
    finally:
        await engine.stop()
