"""Real operators and a real host with engines of the fake backend on a real NATS server: declared, changed, killed, paused, cut off."""

from __future__ import annotations

import asyncio
import signal

import pytest

from shared.declared import NotSettled
from shared.errors import UserError
from shared.messages import HostHeartbeat, ServicePhase
from shared.spec.model import EngineSpec, LLMService, ScalingPolicy
from tests.support.host_process import HostProcess, host_process
from tests.support.in_loop import in_loop
from tests.support.operator_process import platform
from tests.support.specs import service


def chat(least: int = 1, *, seed: str = "1", **scaling: int) -> LLMService:
    """A service of the fake engine; another seed is another revision."""
    return service(
        scaling=ScalingPolicy(min_replicas=least, max_replicas=4, **scaling),
        engine=EngineSpec(backend="fake", settings={"fake-seed": seed}),
    )


def pids(host: HostProcess) -> dict[str, int]:
    """What runs on the host, as it said last."""
    beat: HostHeartbeat = host.beats[-1]
    return {state.name: state.pid for state in beat.replicas}


@in_loop
async def test_a_service_is_declared_scaled_changed_and_deleted(own_nats_server, tmp_path):
    async with (
        platform(own_nats_server, tmp_path) as site,
        host_process(own_nats_server, tmp_path / "h") as host,
    ):
        site.operator()
        await site.led()
        applied = await site.declared.apply(chat(1), by="test")
        assert applied.is_new
        status = await site.settled("chat", replicas=1)
        assert [line.name for line in status.replicas] == ["chat-0"]
        assert (await site.declared.apply(chat(1), by="test")).changes == ()
        with pytest.raises(UserError, match="may have 1 to 4 replicas, not 9"):
            await site.declared.scale("chat", 9, by="test")
        await site.declared.scale("chat", 2, by="test")
        await site.settled("chat", replicas=2)
        before = pids(host)
        await site.declared.apply(chat(1, seed="2"), by="test")
        status = await site.settled("chat", replicas=2)
        assert {line.revision for line in status.replicas} == {status.revision}
        assert not set(before.values()) & set(pids(host).values())
        await site.declared.delete("chat", by="test")
        assert await site.declared.settled("chat", timeout_s=30) is None
        assert await site.declared.list() == []
        assert pids(host) == {}


@in_loop
async def test_a_killed_operator_is_followed_by_one_that_adopts(own_nats_server, tmp_path):
    async with (
        platform(own_nats_server, tmp_path) as site,
        host_process(own_nats_server, tmp_path / "h") as host,
    ):
        first = site.operator()
        epoch = (await site.led()).epoch
        await site.declared.apply(chat(2), by="test")
        await site.settled("chat", replicas=2)
        running = pids(host)
        first.kill()
        site.operator()
        assert (await site.led()).epoch == epoch + 1
        await site.declared.scale("chat", 3, by="test")
        await site.settled("chat", replicas=3)
        assert running.items() <= pids(host).items()


@in_loop
async def test_of_two_operators_a_paused_one_gives_way_and_does_no_harm(own_nats_server, tmp_path):
    async with (
        platform(own_nats_server, tmp_path) as site,
        host_process(own_nats_server, tmp_path / "h") as host,
    ):
        first = site.operator()
        leader = await site.led()
        await site.declared.apply(chat(2), by="test")
        await site.settled("chat", replicas=2)
        site.operator()
        first.signal(signal.SIGSTOP)
        async with asyncio.timeout(20):
            while True:
                second = await site.led()
                if second.operator != leader.operator:
                    break
        assert second.epoch == leader.epoch + 1
        await site.declared.scale("chat", 3, by="test")
        await site.settled("chat", replicas=3)
        running = pids(host)
        first.signal(signal.SIGCONT)
        # Whatever the former leader had begun is refused; it learns that it does not lead.
        async with asyncio.timeout(20):
            while True:
                beat = site.leaders.get(leader.operator)
                if beat is not None and beat.beat > leader.beat and not beat.leads:
                    break
                await asyncio.sleep(0.1)
        await site.settled("chat", replicas=3)
        assert pids(host) == running


@in_loop
async def test_while_the_bus_is_away_replicas_stay_and_are_found_again(own_nats_server, tmp_path):
    async with (
        platform(own_nats_server, tmp_path) as site,
        host_process(own_nats_server, tmp_path / "h0") as host,
        host_process(own_nats_server, tmp_path / "h1") as other,
    ):
        site.operator()
        await site.led()
        await site.declared.apply(chat(2), by="test")
        await site.settled("chat", replicas=2)
        running = pids(host) | pids(other)
        assert len(pids(host)) == len(pids(other)) == 1
        own_nats_server.kill()
        await asyncio.sleep(6)  # twice the lease: the outage itself
        # One host comes back late, as its next try to reconnect falls.
        other.process.send_signal(signal.SIGSTOP)
        own_nats_server.start()
        await site.led()
        # Silent for longer now than a lost host, but not since it could be heard.
        await asyncio.sleep(5)
        other.process.send_signal(signal.SIGCONT)
        await site.declared.scale("chat", 3, by="test")
        status = await site.settled("chat", replicas=3)
        assert len(status.replicas) == len(pids(host)) + len(pids(other)) == 3
        assert running.items() <= (pids(host) | pids(other)).items()


@in_loop
async def test_a_service_that_cannot_start_is_failed_with_its_reason(own_nats_server, tmp_path):
    bad = service(engine=EngineSpec(backend="fake", settings={"fake-no-such-setting": "1"}))
    async with (
        platform(own_nats_server, tmp_path) as site,
        host_process(own_nats_server, tmp_path / "h"),
    ):
        site.operator()
        await site.led()
        await site.declared.apply(bad, by="test")
        with pytest.raises(NotSettled, match="fake-no-such-setting"):
            await site.declared.settled("chat", timeout_s=60)
        found = (await site.declared.get("chat")).status
        assert found is not None
        assert found.phase is ServicePhase.FAILED
        await site.declared.apply(chat(1), by="test")
        await site.settled("chat", replicas=1)
