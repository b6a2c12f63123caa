"""Operators and hosts that lose each other: whoever comes back late is not doubled, and what cannot be read is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shared.spec.model import EngineSpec, LLMService, ScalingPolicy
from shared.vloop import run_virtual
from tests.support.operated_fleet import Fleet
from tests.support.specs import service


def chat(least: int = 2) -> LLMService:
    """A service of the fake engine."""
    return service(
        scaling=ScalingPolicy(min_replicas=least, max_replicas=9),
        engine=EngineSpec(backend="fake"),
    )


def play(scenario: Callable[[Fleet], Awaitable[None]], *, hosts: int = 2) -> None:
    async def main() -> None:
        async with Fleet() as fleet:
            for number in range(hosts):
                fleet.start_host(f"h{number}")
            await scenario(fleet)

    run_virtual(main())


def pids(fleet: Fleet) -> list[tuple[str, str, int]]:
    """Every process that runs, with its host and name."""
    return sorted((host, life.order.name, life.pid) for host, life in fleet.living())


@pytest.mark.parametrize("away_s", [5, 30, 90])
def test_a_host_that_was_cut_off_comes_back_and_nothing_is_left_twice(away_s: int):
    async def scenario(fleet: Fleet) -> None:
        fleet.start_operator("o1")
        await fleet.apply(chat(4))
        await fleet.settled("chat", 4)
        fleet.cut("h1")
        await asyncio.sleep(away_s)
        fleet.heal("h1")
        await asyncio.sleep(60)
        await fleet.settled("chat", 4)
        assert len(set(fleet.of("chat"))) == 4

    play(scenario)


@pytest.mark.parametrize("late_s", [0, 3, 7])
def test_after_an_outage_hosts_that_come_back_late_keep_their_replicas(late_s: int):
    async def scenario(fleet: Fleet) -> None:
        fleet.start_operator("o1")
        await fleet.apply(chat(4))
        await fleet.settled("chat", 4)
        before = pids(fleet)
        for name in ("o1", "h0", "h1"):
            fleet.cut(name)
        await asyncio.sleep(70)
        fleet.heal("o1")
        fleet.heal("h0")
        await asyncio.sleep(late_s)
        fleet.heal("h1")
        await asyncio.sleep(30)
        await fleet.settled("chat", 4)
        assert pids(fleet) == before
        assert fleet.most_of["chat"] == 4

    play(scenario)


def test_a_new_leader_waits_for_a_host_that_it_has_not_heard():
    async def scenario(fleet: Fleet) -> None:
        fleet.start_operator("o1")
        await fleet.apply(chat(4))
        await fleet.settled("chat", 4)
        before = pids(fleet)
        fleet.cut("h1")
        fleet.kill("o1")
        fleet.start_operator("o2")
        await asyncio.sleep(8)
        fleet.heal("h1")
        await asyncio.sleep(30)
        await fleet.settled("chat", 4)
        assert pids(fleet) == before
        assert fleet.most_of["chat"] == 4

    play(scenario)


def test_a_record_that_cannot_be_read_ends_no_replica_and_can_be_declared_anew():
    async def scenario(fleet: Fleet) -> None:
        fleet.start_operator("o1")
        await fleet.apply(chat(2))
        await fleet.settled("chat", 2)
        before = pids(fleet)
        await fleet.spoil("chat")
        await asyncio.sleep(60)
        assert pids(fleet) == before
        beat = fleet.operators[-1].heartbeat()
        assert (beat.leads, beat.reason) == (True, "cannot read the records of chat")
        await fleet.apply(chat(3))
        await fleet.settled("chat", 3)
        assert set(before) < set(pids(fleet))

    play(scenario)


def test_an_operator_says_why_it_does_nothing():
    async def scenario(fleet: Fleet) -> None:
        reasons: dict[str, set[str]] = {"o1": set(), "o2": set()}
        for name, said in reasons.items():
            fleet.start_operator(name)
            for _ in range(100):
                await asyncio.sleep(0.05)
                if fleet.operators:
                    said.add(fleet.operators[-1].heartbeat().reason)
        assert {"", "it listens to hosts first"} <= reasons["o1"]
        assert "another one leads, or the lease is out of reach" in reasons["o2"]
        assert "" not in reasons["o2"]

    play(scenario)
