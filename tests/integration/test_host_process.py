"""A real host process with real engine processes on the fake backend, on a real NATS server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from services.host.adapters.orphans import Notes
from shared.messages import EngineState, ReplicaPhase
from tests.support.gateway_process import Site
from tests.support.host_process import HostProcess, host_process
from tests.support.in_loop import in_loop
from tests.support.nats_server import free_port
from tests.unit.shared.test_models_store import put_model


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def gone(pid: int, *, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while is_alive(pid):  # noqa: ASYNC110 - a process, not ours to be told by
            await asyncio.sleep(0.02)


@in_loop
async def test_a_replica_serves_and_ends_when_it_is_told(nats_server, tmp_path):
    async with host_process(nats_server, tmp_path / "h") as host:
        began = time.monotonic()
        state = await host.running()
        took_s = time.monotonic() - began
        ready = [beat for beat in host.engines if beat.state is EngineState.READY]

        pages = json.loads((host.folder / "engines.json").read_text())
        (target,) = pages[0]["targets"]
        page = await asyncio.to_thread(httpx.get, f"http://{target}/metrics")

        assert (await host.order()).accepted  # again: nothing changes
        assert (await host.stop_replica()).accepted
        await host.phase(None)
        assert [] == json.loads((host.folder / "engines.json").read_text())

    assert {host.name_of(0)} == {beat.name for beat in ready}
    assert {"r1"} == {beat.version for beat in ready}
    assert took_s < 10.0
    assert state.restarts == 0
    assert [{"process": host.name_of(0)}] == [page["labels"] for page in pages]
    assert f"127.0.0.1:{state.metrics_port}" == target
    assert "llm_engine_steps_total" in page.text
    assert not is_alive(state.pid)


@in_loop
async def test_an_engine_that_is_killed_is_started_again_and_leaves_its_black_box(
    nats_server, tmp_path
):
    async with host_process(nats_server, tmp_path / "h") as host:
        first = await host.running()
        os.kill(first.pid, signal.SIGKILL)
        waiting = await host.phase(ReplicaPhase.WAITING)
        second = await host.phase(ReplicaPhase.RUNNING)

        assert "signal SIGKILL" in waiting.reason
        assert 0 < waiting.retry_s <= 0.5
        assert 1 == second.restarts
        assert second.pid != first.pid
        assert 1 == len(list((host.folder / "black-boxes").glob("*.json")))


@in_loop
async def test_a_replica_that_cannot_start_goes_on_trying_and_says_why(nats_server, tmp_path):
    async with host_process(nats_server, tmp_path / "h") as host:
        bad = host.spec(engine={"backend": "fake", "settings": {"fake-no-such-setting": "1"}})
        await host.order(spec=bad)
        await host.until(lambda: (found := host.state()) is not None and found.restarts >= 2)
        state = await host.phase(ReplicaPhase.WAITING)

        assert "fake-no-such-setting" in state.reason
        assert (await host.stop_replica()).accepted
        await host.phase(None)


@in_loop
async def test_when_the_host_is_killed_its_engines_end_and_the_next_life_has_the_epoch(
    nats_server, tmp_path
):
    async with host_process(nats_server, tmp_path / "h") as host:
        host.epoch = 7
        state = await host.running()
        host.kill()
        await gone(state.pid)
        host.start()
        await host.new_life()

        assert [] == host.beats[-1].replicas
        stale = await host.order(epoch=6)
        assert ("epoch", 7) == (stale.refused, stale.epoch)
        await host.running()


@in_loop
async def test_a_host_that_ends_drains_its_replicas(nats_server, tmp_path):
    async with host_process(nats_server, tmp_path / "h") as host:
        pids = [(await host.running(number)).pid for number in range(2)]

        assert 0 == await host.stop()
        assert not any(is_alive(pid) for pid in pids)
        assert host.beats[-1].is_draining
        assert [] == list((host.folder / "black-boxes").glob("*.json"))


async def load(url: str, service: str, *, until: asyncio.Event) -> list[tuple[int, int]]:
    """Ask again and again; return the status of each answer and how many words it had."""
    seen: list[tuple[int, int]] = []
    body = {"model": service, "prompt": "Once", "max_tokens": 40, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=30) as client:

        async def one() -> None:
            while not until.is_set():
                answer = await client.post(f"{url}/v1/completions", json=body)
                usage = answer.json().get("usage", {})
                seen.append((answer.status_code, usage.get("completion_tokens", 0)))

        async with asyncio.TaskGroup() as group:
            for _ in range(16):
                group.create_task(one())
    return seen


@in_loop
async def test_replicas_come_and_go_under_load_without_a_failed_request(nats_server, tmp_path):
    with Site(nats_server, tmp_path) as site:
        async with host_process(nats_server, tmp_path / "h") as host:
            site.service = host.service
            site.add_gateway()
            await host.running(0)
            await site.ready()
            until = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(load(site.url(), host.service, until=until))
                await host.running(1)
                await asyncio.sleep(1.0)
                await host.stop_replica(0)
                await host.phase(None, 0)
                await host.running(0)
                await host.stop_replica(1)
                await host.phase(None, 1)
                until.set()

    assert {(200, 40)} == set(asking.result())
    assert len(asking.result()) > 50


@in_loop
async def test_cores_belong_to_one_replica(nats_server, tmp_path):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core cannot be given twice")
    async with host_process(nats_server, tmp_path / "h") as host:
        spec = host.spec(resourceLimits={"cpu": 1})
        states = [await host.running(number, spec=spec) for number in range(2)]
        pinned = [os.sched_getaffinity(state.pid) for state in states]
        cores = len(os.sched_getaffinity(0))
        refused = [await host.order(number, spec=spec) for number in range(2, cores + 1)][-1]

        assert [1, 1] == [len(cores) for cores in pinned]
        assert pinned[0] != pinned[1]
        assert "room" == refused.refused


@in_loop
async def test_ports_that_run_out_are_said_and_come_back(nats_server, tmp_path):
    port = free_port()
    ports = ("--first-port", str(port), "--ports", "1")
    async with host_process(nats_server, tmp_path / "h", *ports) as host:
        state = await host.running()
        refused = await host.order(1)
        await host.stop_replica()
        await host.phase(None)

        assert port == state.metrics_port
        assert "room" == refused.refused
        assert "ports" in refused.reason
        assert (await host.order(1)).accepted


@in_loop
async def test_drift_is_refused_and_put_back_files_are_served(nats_server, tmp_path):
    async with host_process(nats_server, tmp_path / "h") as host:
        model = put_model(host.folder / "models", "m", fetched=False)
        first = await host.running()
        await host.stop_replica()
        await host.phase(None)
        config = model / "config.json"
        original = config.read_bytes()
        config.write_bytes(original + b"\n")
        await host.order(fingerprint=first.fingerprint)
        failed = await host.phase(ReplicaPhase.FAILED)
        config.write_bytes(original)
        await host.order(fingerprint=first.fingerprint)
        again = await host.phase(ReplicaPhase.RUNNING)

    assert "drift" in failed.reason
    assert first.fingerprint in failed.reason
    assert first.fingerprint == again.fingerprint != ""


@in_loop
async def test_a_damaged_model_fails_with_the_file(nats_server, tmp_path):
    async with host_process(nats_server, tmp_path / "h") as host:
        model = put_model(host.folder / "models", "m", fetched=False)
        (model / "config.json").write_text("{")
        await host.order()
        failed = await host.phase(ReplicaPhase.FAILED)

    assert "config.json" in failed.reason


@in_loop
async def test_a_second_host_of_a_folder_is_refused(nats_server, tmp_path):
    async with host_process(nats_server, tmp_path / "h") as host:
        second = HostProcess(nats_server, host.folder)
        second.start()
        try:
            code = await asyncio.to_thread(second.process.wait, 20)
        finally:
            second.kill()

    assert 2 == code
    assert "already runs" in second.log


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    both = [subprocess.Popen(words) for _ in range(2)]
    yield both
    for process in both:
        process.kill()
        process.wait()


@in_loop
async def test_what_an_earlier_life_left_is_ended_and_a_stranger_is_not(
    nats_server, tmp_path, sleepers
):
    folder = tmp_path / "h"
    notes = Notes(folder / "replicas")
    left, stranger = sleepers
    notes.write("s-0", left.pid)
    notes.write("s-1", stranger.pid)
    note = folder / "replicas" / "s-1.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "began": "1"}))
    async with host_process(nats_server, folder) as host:
        code = await asyncio.to_thread(left.wait, 10)

        assert -signal.SIGTERM == code
        assert stranger.poll() is None
        assert [] == list((folder / "replicas").iterdir())
        assert "orphan_ended" in host.log


@in_loop
async def test_while_the_bus_is_away_replicas_run_on_and_are_told_of_again(
    own_nats_server, tmp_path
):
    async with host_process(own_nats_server, tmp_path / "h") as host:
        before = await host.running()
        own_nats_server.stop()
        await asyncio.sleep(3.0)
        assert is_alive(before.pid)
        own_nats_server.start()
        heard = len(host.beats)
        await host.until(lambda: len(host.beats) > heard)
        after = await host.phase(ReplicaPhase.RUNNING)

        assert (before.pid, 0) == (after.pid, after.restarts)
        assert 1 == len({beat.host for beat in host.beats})
        assert (await host.stop_replica()).accepted
        await host.phase(None)
