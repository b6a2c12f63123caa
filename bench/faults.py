"""What clients see when a process is lost under load: Headrace beside proxies that people use.

200 streams of 60 tokens, 10 ms a token, at concurrency 16. Behind Headrace are two fake engines, behind nginx and vllm-router two plain
OpenAI servers (bench/support/word_backend.py). Failed: the client sees an error. Wrong: what looks whole is not what was to come.
A peer that is not installed is left out and said so (see bench/gateway.py).

    python bench/faults.py [--router FOLDER] [--streams 200] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.support.processes import ROOT, Process, free_port, machine, wait_port
from tests.support.platform import Platform
from tests.support.stream_load import StreamLoad, disturbed, tally

START_S = 90.0
TOKENS = 60
CONCURRENCY = 16
FROZEN_S = 6.0
STREAM_S = 30.0
"""What a client waits for a whole answer; a stream takes 0.6 s in peace."""


class System(msgspec.Struct, frozen=True):
    """What is put under load, and what can be lost of it."""

    url: str
    victim: Callable[[], int]
    gateway: Callable[[], int] | None = None


def pid_of(running: Platform, module: str) -> int:
    """Return the oldest process of a service."""
    return min(
        pid
        for pid in running.pids()
        if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


@contextmanager
def headrace(folder: Path) -> Iterator[System]:
    """Two gateways on one port, two engines."""
    running = Platform(folder / "home", "--fake-engine", "--engines", "2", "--gateways", "2")
    running.start(timeout_s=START_S)
    try:
        yield System(
            running.url,
            lambda: min(running.engine_pids()),
            lambda: pid_of(running, "services.gateway"),
        )
    finally:
        running.kill()


@contextmanager
def servers() -> Iterator[tuple[list[str], Callable[[], int]]]:
    """Two OpenAI servers; the first is the one to be lost."""
    program = str(ROOT / "bench/support/word_backend.py")
    with ExitStack() as stack:
        both = []
        for name in ("a", "b"):
            port = free_port()
            process = stack.enter_context(started(name, [sys.executable, program, str(port)], port))
            both.append((f"http://127.0.0.1:{port}", process.pid))
        yield [url for url, _ in both], lambda: both[0][1]


@contextmanager
def nginx(folder: Path) -> Iterator[System]:
    """nginx as its documentation has it for streaming, two servers upstream."""
    port = free_port()
    with servers() as (urls, victim):
        upstream = " ".join(f"server {url.removeprefix('http://')};" for url in urls)
        conf = folder / "nginx.conf"
        conf.write_text(
            f"worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log stderr; events {{ worker_connections 4096; }}\n"
            f"http {{ access_log off; upstream b {{ {upstream} keepalive 64; }}\n"
            f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://b; proxy_http_version 1.1;\n"
            f'proxy_set_header Connection ""; proxy_buffering off; }} }} }}\n'
        )
        with started("nginx", ["nginx", "-c", str(conf)], port):
            yield System(f"http://127.0.0.1:{port}", victim)


def router(binary: str) -> Callable[[Path], object]:
    """Return the set-up of vllm-router, the Rust router of the vLLM project."""

    @contextmanager
    def start(folder: Path) -> Iterator[System]:
        port, metrics = free_port(), free_port()
        with servers() as (urls, victim):
            argv = [binary, "--worker-urls", *urls, "--host", "127.0.0.1", "--port", str(port)]
            argv += ["--policy", "round_robin", "--prometheus-port", str(metrics)]
            with started("vllm-router", argv, port):
                yield System(f"http://127.0.0.1:{port}", victim)

    return start


@contextmanager
def started(name: str, argv: list[str], port: int) -> Iterator[Process]:
    """Run a server."""
    process = Process(name, argv)
    try:
        wait_port(port, process)
        yield process
    finally:
        process.stop()


def faults(system: System) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return what can happen to a system."""

    def send(pid: Callable[[], int], number: signal.Signals) -> Callable[[], Awaitable[None]]:
        async def happen() -> None:
            victim = pid()
            os.kill(victim, number)
            if number is signal.SIGSTOP:
                await asyncio.sleep(FROZEN_S)
                os.kill(victim, signal.SIGCONT)

        return happen

    found = {
        "backend killed": send(system.victim, signal.SIGKILL),
        f"backend frozen for {FROZEN_S:.0f} s": send(system.victim, signal.SIGSTOP),
        "backend told to stop": send(system.victim, signal.SIGTERM),
    }
    if system.gateway is not None:
        found["one gateway of two killed"] = send(system.gateway, signal.SIGKILL)
    return found


async def measure(
    url: str, disturb: Callable[[], Awaitable[None]], *, streams: int
) -> dict[str, object]:
    """Run the load with one fault in it."""
    prompts = [f"question {number % 10}" for number in range(streams)]
    load = StreamLoad(url, model="fake", max_tokens=TOKENS, stream_s=STREAM_S, ignore_eos=True)
    expected = await load.expected(prompts)
    outcomes = await disturbed(
        load, prompts, disturb, concurrency=CONCURRENCY, after_texts=streams * TOKENS // 4
    )
    seen = tally(outcomes, expected)
    errors = sorted({outcome.error[:60] for outcome in outcomes if outcome.error})
    return {**msgspec.to_builtins(seen), "errors": errors[:3]}


def measure_all(systems: dict[str, Callable[[Path], object]], *, streams: int) -> list[dict]:
    """Run every fault on every system, each on a fresh start."""
    rows = []
    for name, setup in systems.items():
        number, count = 0, 1
        while number < count:
            with tempfile.TemporaryDirectory() as folder, setup(Path(folder)) as system:
                found = faults(system)
                count = len(found)
                fault, disturb = list(found.items())[number]
                row = {"system": name, "fault": fault}
                row |= asyncio.run(measure(system.url, disturb, streams=streams))
            rows.append(row)
            sys.stderr.write(f"{row}\n")
            number += 1
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--router", default="", help="folder with vllm-router's program")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    systems: dict[str, Callable[[Path], object]] = {"headrace": headrace}
    if shutil.which("nginx"):
        systems["nginx"] = nginx
    binary = shutil.which("vllm-router", path=options.router or None)
    if binary:
        systems["vllm-router"] = router(binary)
    rows = measure_all(systems, streams=options.streams)
    result = {"machine": machine("vllm-router"), "absent": _absent(systems), "rows": rows}
    if options.json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
        return
    sys.stdout.write(f"{result['machine']}\n")
    sys.stdout.write(
        "| system | fault | streams | failed | wrong | longest silence s |\n|---|---|---|---|---|---|\n"
    )
    for row in rows:
        sys.stdout.write(
            f"| {row['system']} | {row['fault']} | {row['streams']} | {row['failed']} | {row['wrong']} | {row['longest_gap_s']:.2f} |\n"
        )


def _absent(systems: dict[str, object]) -> list[str]:
    return [name for name in ("nginx", "vllm-router") if name not in systems]


if __name__ == "__main__":
    main()
