"""`headrace up` as a person meets it, with the fake engine: it serves, says what is wrong, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from shared.messages import BlackBox
from shared.natsbus import NatsBus
from shared.settings import NatsSettings, Secret
from tests.support.nats_server import free_port
from tests.support.platform import ROOT, Platform, clean_environment
from tests.support.prometheus import promtool

START_S = 90.0
LOOK_S = 1.2
"""Engines look once a second at whose requests are under way."""


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    running = Platform(tmp_path / "home", "--fake-engine", "--engines", "2")
    running.start(timeout_s=START_S)
    yield running
    running.kill()


def command(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.console", *words],
        capture_output=True,
        text=True,
        env=clean_environment(home),
        timeout=30,
        check=False,
    )


def ask(platform: Platform, text: str = "hello") -> httpx.Response:
    body = {"model": "fake", "messages": [{"role": "user", "content": text}], "max_tokens": 8}
    return httpx.post(f"{platform.url}/v1/chat/completions", json=body, timeout=20)


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists() and "Z" != _state(pid)}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


def wait_until_gone(pids: set[int], *, within_s: float = 10.0) -> set[int]:
    end_s = time.monotonic() + within_s
    while (left := alive(pids)) and time.monotonic() < end_s:
        time.sleep(0.05)
    return left


def targets_of(config: Path) -> list[str]:
    groups = []
    for job in yaml.safe_load(config.read_text())["scrape_configs"]:
        groups += job.get("static_configs", [])
        for source in job.get("file_sd_configs", []):
            for file in source["files"]:
                groups += json.loads(Path(file).read_text())
    return [target for group in groups for target in group["targets"]]


def test_it_serves_the_curl_line_that_it_prints_and_ends_whole(platform):
    curl = next(line.strip() for line in platform.output if line.strip().startswith("curl "))
    answer = subprocess.run(
        shlex.split(curl), capture_output=True, text=True, timeout=20, check=True
    )
    pids = platform.pids()
    status = command(platform.home, "status")
    metrics = httpx.get(f"http://127.0.0.1:{platform.metrics_port}/metrics").text
    scrape = platform.logs.parent / "prometheus.yml"
    promtool("check", "config", scrape)
    pages = [httpx.get(f"http://{target}/metrics").text for target in targets_of(scrape)]
    code = platform.stop()

    assert answer.stdout.rstrip().endswith("data: [DONE]")
    assert 0 == status.returncode, status.stdout + status.stderr
    assert 2 == status.stdout.count(" ready ")
    assert f"http://127.0.0.1:{platform.metrics_port}/metrics" in status.stdout
    assert "headrace_tracer_ledgers_total" in metrics
    assert [1, 2, 1, 1, 1] == [
        sum(f"\n{name} " in page or f"\n{name}{{" in page for page in pages)
        for name in (
            "headrace_gateway_open_calls",
            "llm_engine_steps_total",
            "headrace_tracer_level",
            "headrace_host_replicas",
            "headrace_operator_leads",
        )
    ]
    assert str(scrape) in "".join(platform.output)
    assert 0 == code
    assert not wait_until_gone(pids)


def test_bench_prints_its_table(platform):
    words = (
        "bench",
        "--url",
        platform.url,
        "--concurrency",
        "4",
        "--requests",
        "8",
        "--input-len",
        "64",
        "--output-len",
        "8",
    )

    result = command(platform.home, *words)

    assert 0 == result.returncode, result.stderr
    assert "requests 8, failed 0" in result.stdout
    assert "8.0 generated" in result.stdout


def test_chat_answers_what_is_typed(platform):
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "services.console",
            "chat",
            "--url",
            platform.url,
            "--max-tokens",
            "5",
        ],
        input="hello\nand again\n",
        capture_output=True,
        text=True,
        env=clean_environment(platform.home),
        timeout=30,
        check=True,
    )

    assert 2 == len([line for line in result.stdout.splitlines() if line.strip()])


async def kill_under_load(platform: Platform, engine: int) -> tuple[BlackBox, float]:
    """Kill an engine while both answer; return what is told of its black box, and after how long."""
    tracer = NatsSettings(
        url=platform.nats_url,
        user="tracer",
        password=Secret((platform.folder / "tracer.password").read_text()),
    )
    told: asyncio.Future[BlackBox] = asyncio.get_running_loop().create_future()
    body = {"model": "fake", "prompt": "Once", "max_tokens": 4000, "ignore_eos": True}
    body |= {"stream": True}
    async with asyncio.TaskGroup() as group, httpx.AsyncClient(timeout=20) as client:
        bus = await NatsBus.connect(tracer, group=group, name="tracer")
        await bus.subscribe(BlackBox, told.set_result)
        url = f"{platform.url}/v1/completions"
        answers = [
            await client.send(client.build_request("POST", url, json=body), stream=True)
            for _ in range(8)
        ]
        await asyncio.sleep(LOOK_S)
        os.kill(engine, signal.SIGKILL)
        killed_s = time.monotonic()
        async with asyncio.timeout(10):
            box = await told
        took_s = time.monotonic() - killed_s
        for answer in answers:
            await answer.aclose()
        await bus.close()
    return box, took_s


def test_an_engine_that_is_killed_leaves_its_black_box_and_comes_back(platform):
    engine = min(platform.engine_pids())

    box, took_s = asyncio.run(kill_under_load(platform, engine))
    kept = json.loads(command(platform.home, "blackbox", "--json").stdout)
    shown = command(platform.home, "blackbox", kept["name"]).stdout
    line = next(line for line in platform.lines() if "its black box: " in line)

    assert took_s < 2.0
    assert (engine, "signal SIGKILL") == (kept["pid"], box.cause)
    assert box.path == str(platform.folder / "black-boxes" / f"{box.engine}.json")
    assert box.last_step == kept["last_step"] == kept["steps"][-1]["number"] > 50
    assert box.rss_bytes > 10 << 20
    assert len(kept["requests"]["requests"]) >= 2
    assert {"decode"} == {each["stage"] for each in kept["requests"]["requests"]}
    assert kept["requests"]["requests"][0]["request"] in shown
    assert kept["summary"] in line
    assert box.path in line
    assert "Once" not in Path(box.path).read_text()

    end_s = time.monotonic() + 20
    while command(platform.home, "status").stdout.count(" ready ") < 2:
        assert time.monotonic() < end_s, platform.log_text()

    assert 200 == ask(platform).status_code


def test_nothing_is_left_when_it_is_killed(platform):
    pids = platform.pids()

    platform.process.kill()
    platform.process.wait(10)

    assert not wait_until_gone(pids)


def test_a_second_platform_of_the_same_name_is_refused(platform):
    result = command(
        platform.home,
        "up",
        "--fake-engine",
        "--port",
        str(free_port()),
        "--nats-port",
        str(free_port()),
    )

    assert 2 == result.returncode
    assert "already runs" in result.stderr


@pytest.mark.parametrize("option", ["--port", "--nats-port", "--metrics-port"])
def test_a_taken_port_is_named_with_the_option_that_changes_it(tmp_path, option):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {
            "--port": str(free_port()),
            "--nats-port": str(free_port()),
            "--metrics-port": str(free_port()),
            option: str(taken.getsockname()[1]),
        }
        result = command(
            tmp_path, "up", "--fake-engine", *(word for pair in ports.items() for word in pair)
        )

    assert 2 == result.returncode
    assert f"port {ports[option]}" in result.stderr
    assert option in result.stderr
    assert "Traceback" not in result.stderr


def test_a_model_that_is_not_there_is_named(tmp_path):
    result = command(
        tmp_path,
        "up",
        "--model",
        "no-such-model",
        "--no-tracer",
        "--port",
        str(free_port()),
        "--nats-port",
        str(free_port()),
    )

    assert 2 == result.returncode
    assert "no-such-model" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_engine_that_cannot_start_ends_the_platform_with_its_reason(tmp_path):
    words = (
        "up",
        "--fake-engine",
        "--engine-arg",
        "fake-no-such-setting=1",
        "--no-tracer",
        "--port",
        str(free_port()),
        "--nats-port",
        str(free_port()),
    )

    result = command(tmp_path, *words)

    assert 2 == result.returncode, result.stderr
    assert "fake-no-such-setting" in result.stderr


def test_status_without_a_platform_says_how_to_start_one(tmp_path):
    result = command(tmp_path, "status")

    assert 2 == result.returncode
    assert "headrace up" in result.stderr


def test_keys_are_asked_for_where_they_are_on(tmp_path):
    keys = tmp_path / "keys"
    key = command(tmp_path, "key", "new", "ada", "--file", str(keys)).stdout.strip()
    platform = Platform(tmp_path / "home", "--fake-engine", "--api-keys", str(keys))
    try:
        platform.start(timeout_s=START_S)
        body = {"model": "fake", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        url = f"{platform.url}/v1/chat/completions"
        without = httpx.post(url, json=body, timeout=20)
        with_key = httpx.post(
            url, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=20
        )
    finally:
        platform.kill()

    assert (401, 200) == (without.status_code, with_key.status_code)
    assert key not in platform.log_text()


def test_beyond_loopback_keys_are_wanted(tmp_path):
    words = (
        "up",
        "--fake-engine",
        "--host",
        "0.0.0.0",  # noqa: S104 - to see it refused
        "--port",
        str(free_port()),
        "--nats-port",
        str(free_port()),
    )

    result = command(tmp_path, *words)

    assert 2 == result.returncode
    assert "without API keys" in result.stderr


def test_the_bootstrap_script_runs_from_any_folder(tmp_path):
    result = subprocess.run(
        [str(ROOT / "headrace"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert "up" in result.stdout
    assert "" == result.stderr
