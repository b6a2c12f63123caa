"""What `headrace up` keeps up: the service that it declared, services that were applied, whoever is killed meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from services.console.fleet.plan import UpOptions
from services.console.fleet.service import service_of
from shared.declared import Declared
from shared.natsbus import NatsBus
from shared.settings import NatsSettings, read_secret
from tests.support.platform import Platform

START_S = 60.0


def declared(platform: Platform, work: Callable[[Declared], Awaitable[object]]) -> None:
    """Do something with the platform's services, as the command line does."""

    async def main() -> None:
        address = NatsSettings(
            url=platform.nats_url,
            user="console",
            password=read_secret(platform.folder / "console.password"),
        )
        async with asyncio.TaskGroup() as group:
            bus = await NatsBus.connect(address, group=group, name="test")
            try:
                await work(await Declared.open(bus))
            finally:
                await bus.close()

    asyncio.run(main())


def scale(platform: Platform, name: str, replicas: int) -> None:
    declared(platform, lambda services: services.scale(name, replicas, by="ada"))


def ask(platform: Platform, model: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    return httpx.post(f"{platform.url}/v1/chat/completions", json=body, timeout=20).status_code


def ready(platform: Platform) -> list[str]:
    return sorted(one["name"] for one in platform.engines() if one["state"] == "ready")


def until(platform: Platform, is_so: Callable[[], bool], *, within_s: float = 30.0) -> None:
    end_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end_s, "\n".join(platform.lines()) + platform.log_text()
        time.sleep(0.05)


def pid_of(platform: Platform, module: str) -> int:
    (pid,) = [
        pid
        for pid in platform.pids()
        if f"-m\0{module}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return pid


@pytest.fixture
def platform(tmp_path: Path):
    running = Platform(tmp_path / "home", "--fake-engine")
    running.start(timeout_s=START_S)
    yield running
    running.kill()


def test_services_that_were_applied_come_up_again_and_are_told(platform):
    other = service_of(UpOptions(fake=True, service="other"))
    declared(platform, lambda services: services.apply(other, by="ada"))
    until(platform, lambda: ["fake-0", "other-0"] == ready(platform))
    assert 200 == ask(platform, "other")
    assert 0 == platform.stop()

    again = Platform(platform.home, "--fake-engine", "--service", "mine")
    again.start(timeout_s=START_S)
    try:
        until(again, lambda: ["mine-0", "other-0"] == ready(again))
        said = [line for line in again.output if "applied earlier" in line]

        assert (200, 200) == (ask(again, "mine"), ask(again, "other"))
        assert 1 == len(said)
        assert "coming up again: other " in said[0]
    finally:
        again.kill()


def test_a_service_goes_to_as_many_replicas_as_are_wanted_and_back(platform):
    scale(platform, "fake", 3)
    until(platform, lambda: 3 == len(ready(platform)))
    scale(platform, "fake", 1)
    until(platform, lambda: ["fake-0"] == ready(platform))

    assert 200 == ask(platform, "fake")


def test_when_the_host_is_killed_its_replicas_are_started_anew(platform):
    before = platform.engine_pids()
    os.kill(pid_of(platform, "services.host"), signal.SIGKILL)
    until(
        platform, lambda: not before & platform.engine_pids() and len(platform.engine_pids()) == 1
    )
    until(platform, lambda: ["fake-0"] == ready(platform) and 200 == ask(platform, "fake"))

    assert any("host ended (signal SIGKILL)" in line for line in platform.lines())


def test_when_the_operator_is_killed_nothing_else_changes(platform):
    engines = platform.engine_pids()
    operator = pid_of(platform, "services.operator")
    os.kill(operator, signal.SIGKILL)
    assert 200 == ask(platform, "fake")
    until(platform, lambda: operator not in platform.pids())
    scale(platform, "fake", 2)
    until(platform, lambda: 2 == len(ready(platform)))

    assert engines < platform.engine_pids()
    assert 200 == ask(platform, "fake")
