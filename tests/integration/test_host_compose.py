"""A host whose replicas are containers, on a real docker engine. Left out unless asked for: it needs one, and builds an image."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from shared.messages import ReplicaPhase
from tests.support.host_process import HostProcess, host_process
from tests.support.in_loop import in_loop
from tests.support.nats_server import NatsServer, free_port

ROOT = Path(__file__).resolve().parents[2]
DOCKER = shutil.which("docker") or "docker"
BUILD_S = 600
COMPOSE = """
services:
  nats:
    image: nats:2-alpine
    command: [-js]
    ports: ["127.0.0.1:{port}:4222"]
  engine:
    image: headrace-base
    entrypoint: [python, -m, services.engine]
    environment: {{HEADRACE_ENGINE_NATS_URL: "nats://nats:4222"}}
  eater:
    image: headrace-base
    entrypoint: [python, -c, "import time; time.sleep(2); held = bytearray(300 << 20); time.sleep(60)"]
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(BUILD_S + 300)]


def docker(*words: str, timeout: float = 120) -> str:
    done = subprocess.run(
        [DOCKER, *words], capture_output=True, text=True, check=True, timeout=timeout
    )
    return done.stdout.strip()


class Site(NatsServer):
    """A compose project whose bus stands in for a test's server."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, port=free_port())
        self.project = f"hr{uuid4().hex[:8]}"
        self.file = folder / "compose.yaml"
        self.file.write_text(COMPOSE.format(port=self.port))

    def compose(self, *words: str) -> str:
        return docker("compose", "-p", self.project, "-f", str(self.file), *words)

    @property
    def options(self) -> tuple[str, ...]:
        own = ("--compose-file", str(self.file), "--compose-project", self.project)
        return ("--driver", "compose", "--models", "", *own)

    def containers(self) -> list[str]:
        return sorted(
            docker(
                "ps", "-a", "--format", "{{.Names}}", "--filter", f"name={self.project}-s"
            ).split()
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    if (
        not shutil.which(DOCKER)
        or subprocess.run([DOCKER, "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no docker engine")
    words = ("build", "-q", "-f", "deploy/Dockerfile", "--target", "base", "-t", "headrace-base")
    docker(*words, "--build-context", "wheels=deploy/wheels", str(ROOT), timeout=BUILD_S)
    made = Site(tmp_path)
    made.compose("up", "-d", "nats")
    yield made
    for name in made.containers():
        docker("rm", "-f", name)
    made.compose("down", "-v")


async def started(host: HostProcess, number: int = 0, **parts: object) -> None:
    answer = await host.order(number, spec=host.spec(**parts))
    assert answer.accepted, answer
    await host.phase(ReplicaPhase.RUNNING, number, within_s=60)


@in_loop
async def test_a_replica_is_a_container_held_to_its_limits_and_goes_when_it_is_told(site, tmp_path):
    async with host_process(site, tmp_path / "h", *site.options) as host:
        await started(host, resourceLimits={"memory": "256Mi", "cpu": 1})
        (name,) = site.containers()
        inspected = await asyncio.to_thread(docker, "inspect", name)
        limits = json.loads(inspected)[0]["HostConfig"]
        await host.stop_replica()
        await host.phase(None, within_s=60)

        assert f"{site.project}-{host.name_of(0)}" == name
        assert 256 << 20 == limits["Memory"]
        assert str(min(os.sched_getaffinity(0))) == limits["CpusetCpus"]
        assert [] == site.containers()


@in_loop
async def test_a_container_that_is_killed_is_started_again(site, tmp_path):
    async with host_process(site, tmp_path / "h", *site.options) as host:
        await started(host)
        (name,) = site.containers()
        await asyncio.to_thread(docker, "kill", name)
        waiting = await host.phase(ReplicaPhase.WAITING, within_s=60)
        again = await host.phase(ReplicaPhase.RUNNING, within_s=60)

        assert "exit code 137" in waiting.reason
        assert 1 == again.restarts
        assert (await host.stop_replica()).accepted
        await host.phase(None, within_s=60)


@in_loop
async def test_containers_outlive_the_host_and_its_next_life_takes_them_over(site, tmp_path):
    async with host_process(site, tmp_path / "h", *site.options) as host:
        await started(host)
        began = await asyncio.to_thread(
            docker, "inspect", "-f", "{{.State.StartedAt}}", *site.containers()
        )
        host.kill()
        host.start()
        await host.new_life()
        await host.phase(ReplicaPhase.RUNNING, within_s=60)
        now = await asyncio.to_thread(
            docker, "inspect", "-f", "{{.State.StartedAt}}", *site.containers()
        )

        assert began == now
        assert (await host.order()).accepted
        assert 0 == await host.stop()
        assert [] == site.containers()


@in_loop
async def test_memory_beyond_the_limit_ends_a_container_with_that_reason(site, tmp_path):
    options = (*site.options, "--compose-service", "eater")
    async with host_process(site, tmp_path / "h", *options) as host:
        await host.order(spec=host.spec(resourceLimits={"memory": "64Mi"}))
        waiting = await host.phase(ReplicaPhase.WAITING, within_s=60)
        await host.stop_replica()
        await host.phase(None, within_s=60)

        assert "more memory than resourceLimits.memory allows" in waiting.reason
