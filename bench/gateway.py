"""The gateway under load against the proxies that people use: CPU per token, added latency, saturation.

Paced: 128 streams of 64 tokens, 10 ms steps. Headrace: client → gateway → NATS → fake engine and back, with API keys, validation and
metrics on. nginx and vllm-router stand in front of a fake OpenAI backend with the same pacing; `direct` is that backend alone.
The process under measurement has one CPU to itself, all others share the second. A peer that is not installed is left out and said so:
`apt-get install nginx-light`, `pip install vllm-router` (name the program with --router).

    python bench/gateway.py [--seconds 8] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.support.processes import ROOT, Process, free_port, machine, wait_port
from services.console.fleet.instance import Instance
from shared.keys import add_key

UNDER_TEST_CPU = 0
OTHERS_CPU = 1
STEP_S = 0.01
PYTHON = sys.executable
FAKE = (
    "--service",
    "m",
    "--backend",
    "fake",
    "--fake-stamp",
    "true",
    "--fake-prefill-tokens-per-s",
    "1e9",
    "--fake-max-streams",
    "1024",
)
"""An engine whose steps do not wait for prefill, as the paced backend's do not."""
Setup = Callable[[Path, float], Iterator[tuple[int, str, Process]]]
"""Starts a system with a step time; yields (port, key, process under measurement)."""


@contextmanager
def headrace(folder: Path, step_s: float) -> Iterator[tuple[int, str, list[Process]]]:
    """Start NATS, gateway and fake engine; the gateway is under measurement, then NATS and engine for the record."""
    instance = Instance(folder / "headrace")
    instance.claim()
    nats_port, port = free_port(), free_port()
    files = instance.write_nats(port=nats_port)
    key = add_key(folder / "keys", tenant="bench")

    def service(name: str, *options: str, cpu: int) -> Process:
        argv = [
            PYTHON,
            "-m",
            f"services.{name}",
            "--nats-url",
            f"nats://127.0.0.1:{nats_port}",
            "--nats-user",
            name,
        ]
        return Process(name, [*argv, "--nats-password-file", str(files[name]), *options], cpu=cpu)

    running = [Process("nats", instance.nats_argv, cpu=OTHERS_CPU)]
    try:
        wait_port(nats_port, running[0])
        door = ("--http-port", str(port), "--keys-file", str(folder / "keys"))
        running.insert(0, service("gateway", *door, cpu=UNDER_TEST_CPU))
        running.append(service("engine", *FAKE, "--fake-step-s", str(step_s), cpu=OTHERS_CPU))
        wait_port(port, running[0])
        _wait_ready(port, key)
        yield port, key, running
    finally:
        for process in running:
            process.stop()


def _wait_ready(port: int, key: str) -> None:
    script = f"until curl -sf -o /dev/null -H 'Authorization: Bearer {key}' http://127.0.0.1:{port}/ready; do sleep 0.1; done"
    subprocess.run(["timeout", "60", "sh", "-c", script], check=True)


@contextmanager
def backend(step_s: float) -> Iterator[tuple[int, Process]]:
    """Start the paced backend."""
    port = free_port()
    process = Process(
        "backend",
        [PYTHON, str(ROOT / "bench/support/paced_backend.py"), str(port), "--step", str(step_s)],
        cpu=OTHERS_CPU,
    )
    try:
        wait_port(port, process)
        yield port, process
    finally:
        process.stop()


@contextmanager
def direct(_: Path, step_s: float) -> Iterator[tuple[int, str, list[Process]]]:
    """The backend without anything before it."""
    with backend(step_s) as (port, process):
        yield port, "none", [process]


@contextmanager
def nginx(folder: Path, step_s: float) -> Iterator[tuple[int, str, list[Process]]]:
    """nginx as its documentation has it for streaming: no buffering, keep-alive to the backend, one worker."""
    port = free_port()
    with backend(step_s) as (upstream, _):
        conf = folder / "nginx.conf"
        conf.write_text(
            f"worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log stderr; events {{ worker_connections 4096; }}\n"
            f"http {{ access_log off; upstream b {{ server 127.0.0.1:{upstream}; keepalive 256; }}\n"
            f"server {{ listen 127.0.0.1:{port}; tcp_nodelay on; location / {{ proxy_pass http://b; proxy_http_version 1.1;\n"
            f'proxy_set_header Connection ""; proxy_buffering off; }} }} }}\n'
        )
        process = Process("nginx", ["nginx", "-c", str(conf)], cpu=UNDER_TEST_CPU)
        try:
            wait_port(port, process)
            yield port, "none", [process]
        finally:
            process.stop()


def router(binary: str) -> Callable:
    """Return the set-up of vllm-router, the Rust router of the vLLM project."""

    @contextmanager
    def start(_: Path, step_s: float) -> Iterator[tuple[int, str, list[Process]]]:
        port, metrics = free_port(), free_port()
        with backend(step_s) as (upstream, _backend):
            argv = [
                binary,
                "--worker-urls",
                f"http://127.0.0.1:{upstream}",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
            ]
            argv += ["--policy", "round_robin", "--prometheus-port", str(metrics)]
            process = Process("vllm-router", argv, cpu=UNDER_TEST_CPU)
            try:
                wait_port(port, process)
                yield port, "none", [process]
            finally:
                process.stop()

    return start


def measure(
    port: int, key: str, processes: list[Process], *, seconds: float, plain: bool, connections: int
) -> dict[str, object]:
    """Run the load once; return its figures with the CPU of each process per token and per request."""
    argv = [
        "taskset",
        "-c",
        str(OTHERS_CPU),
        PYTHON,
        str(ROOT / "bench/support/stream_load.py"),
        str(port),
    ]
    argv += [
        "--key",
        key,
        "--seconds",
        str(seconds),
        "--connections",
        str(connections),
        *(["--plain", "--tokens", "4"] if plain else []),
    ]
    before: list[float] = []
    after: list[float] = []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as load:
        assert load.stdout is not None
        for line in load.stdout:
            if line.startswith("measure\n"):
                before = [process.cpu_s() for process in processes]
            elif line.startswith("measured"):
                after = [process.cpu_s() for process in processes]
            else:
                figures: dict[str, object] = json.loads(line)
    for process in processes:
        process.check_alive()
    spent_us = [(b - a) * 1e6 for a, b in zip(before, after, strict=True)]
    tokens, requests = int(figures["tokens"]), int(figures["requests"])
    if tokens:
        figures["us_per_token"] = {
            p.name: round(us / tokens, 2) for p, us in zip(processes, spent_us, strict=True)
        }
    if requests:
        figures["us_per_request"] = {
            p.name: round(us / requests, 1) for p, us in zip(processes, spent_us, strict=True)
        }
    figures["rss_mib"] = round(processes[0].rss_mib(), 1)
    return figures


def middle(runs: list[dict[str, object]], key: str) -> dict[str, object]:
    """Return the run with the median of a figure of the first process."""

    def value(run: dict[str, object]) -> float:
        figure = run[key]
        return next(iter(figure.values())) if isinstance(figure, dict) else float(figure)

    wanted = statistics.median_low([value(run) for run in runs])
    return next(run for run in runs if value(run) == wanted)


def measure_all(
    systems: dict[str, Callable], options: argparse.Namespace
) -> tuple[dict[str, list], list, list]:
    """Run all systems in turn, interleaved; return the runs paced, saturated and of short requests."""
    paced: dict[str, list] = {name: [] for name in systems}
    saturated: list = []
    short: list = []
    for _ in range(options.rounds):
        for name, start in systems.items():
            with (
                tempfile.TemporaryDirectory() as folder,
                start(Path(folder), STEP_S) as (port, key, processes),
            ):
                paced[name].append(
                    measure(
                        port, key, processes, seconds=options.seconds, plain=False, connections=128
                    )
                )
                if name == "headrace":
                    short.append(
                        measure(
                            port,
                            key,
                            processes,
                            seconds=options.seconds / 2,
                            plain=True,
                            connections=32,
                        )
                    )
        with (
            tempfile.TemporaryDirectory() as folder,
            headrace(Path(folder), 0.0) as (port, key, processes),
        ):
            saturated.append(
                measure(port, key, processes, seconds=options.seconds, plain=False, connections=128)
            )
    return paced, saturated, short


def main() -> None:
    """Run all systems in turn, `rounds` times interleaved, and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--router", default=shutil.which("vllm-router") or "")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    systems = {"headrace": headrace, "direct": direct}
    if shutil.which("nginx"):
        systems["nginx"] = nginx
    if options.router:
        systems["vllm-router"] = router(options.router)
    paced, saturated, short = measure_all(systems, options)
    result = {
        "machine": machine("vllm-router", "nats-py", "uvloop", "httptools", "msgspec"),
        "paced": {name: middle(runs, "us_per_token") for name, runs in paced.items()},
        "short_requests": middle(short, "us_per_request"),
        "saturated": middle(saturated, "tokens_per_s"),
    }
    print(json.dumps(result, indent=2), flush=True)
    if not options.json:
        show(result)


def show(result: dict) -> None:
    """Print the table."""
    print(
        f"\n{'paced 128 × 64, 10 ms':<24}{'CPU µs/token':>14}{'p50 ms':>9}{'p99 ms':>9}{'tok/s':>9}{'failed':>8}"
    )
    for name, run in result["paced"].items():
        cpu = next(iter(run["us_per_token"].values()))
        print(
            f"{name:<24}{cpu:>14}{run['token_p50_ms']:>9}{run['token_p99_ms']:>9}{run['tokens_per_s']:>9}{run['failed']:>8}"
        )
    print(f"\nheadrace, engine side and bus: {result['paced']['headrace']['us_per_token']}")
    print(
        f"headrace, short requests, µs CPU each: {result['short_requests']['us_per_request']}, failed {result['short_requests']['failed']}"
    )
    print(
        f"headrace, steps without pause: {result['saturated']['tokens_per_s']} tokens/s, {result['saturated']['us_per_token']}"
    )


if __name__ == "__main__":
    main()
