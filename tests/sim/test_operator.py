"""Operators and hosts together in virtual time: killed at every step, paused, cut off, with hosts that die; the fleet ends as declared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shared.messages import ServicePhase
from shared.spec.model import EngineSpec, LLMService, ScalingPolicy
from shared.vloop import run_virtual
from tests.support.operated_fleet import Fleet
from tests.support.specs import service


def chat(least: int = 2, *, seed: str = "1", name: str = "chat") -> LLMService:
    """A service of the fake engine; another seed is another revision."""
    return service(
        name,
        scaling=ScalingPolicy(min_replicas=least, max_replicas=9),
        engine=EngineSpec(backend="fake", settings={"fake-seed": seed}),
    )


def play(scenario: Callable[[Fleet], Awaitable[None]], *, hosts: int = 2) -> None:
    async def main() -> None:
        async with Fleet() as fleet:
            for number in range(hosts):
                fleet.start_host(f"h{number}")
            await scenario(fleet)

    run_virtual(main())


def test_a_service_is_declared_changed_scaled_and_deleted():
    async def scenario(fleet: Fleet) -> None:
        fleet.start_operator("o1")
        await fleet.apply(chat(2))
        await fleet.settled("chat", 2)
        assert fleet.of("chat") == ["chat-0", "chat-1"]
        await fleet.apply(chat(2, seed="2"))
        status = await fleet.settled("chat", 2)
        assert status.phase is ServicePhase.RUNNING
        await fleet.want("chat", 4)
        await fleet.settled("chat", 4)
        await fleet.want("chat", 1)
        await fleet.settled("chat", 2)
        await fleet.delete("chat")
        await fleet.gone("chat")
        assert fleet.most_of["chat"] <= 4

    play(scenario)


async def whole_story(fleet: Fleet) -> None:
    """Declare, change, scale, delete; another operator takes over when one dies."""
    await fleet.apply(chat(2))
    await fleet.settled("chat", 2)
    await fleet.apply(chat(2, seed="2"))
    await fleet.settled("chat", 2)
    await fleet.want("chat", 3)
    await fleet.settled("chat", 3)
    assert fleet.most_of["chat"] <= 3
    await fleet.delete("chat")
    await fleet.gone("chat")


def frames_of_a_whole_story() -> int:
    """How many frames an operator sends in the story."""
    found = 0

    async def scenario(fleet: Fleet) -> None:
        nonlocal found
        wire = fleet.start_operator("o1")
        await whole_story(fleet)
        found = wire.sent

    play(scenario)
    return found


@pytest.mark.parametrize("is_sent", [False, True], ids=["before", "after"])
def test_an_operator_killed_at_any_frame_is_followed_by_one_that_ends_the_same(is_sent: bool):
    frames = frames_of_a_whole_story()
    assert frames > 100

    def story(doom: int) -> Callable[[Fleet], Awaitable[None]]:
        async def scenario(fleet: Fleet) -> None:
            fleet.start_operator("o1", doom=doom, is_sent=is_sent)

            async def successor() -> None:
                while "o1" in fleet._lives and not fleet._lives["o1"].wire.is_cut:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                fleet.start_operator("o2")

            follows = asyncio.ensure_future(successor())  # noqa: TID251 - ends with the story
            try:
                await whole_story(fleet)
            finally:
                follows.cancel()

        return scenario

    for doom in range(1, frames + 1):
        try:
            play(story(doom))
        except BaseException as error:
            error.add_note(f"killed with frame {doom}")
            raise


def test_of_two_operators_one_acts_and_a_paused_one_wakes_up_without_harm():
    async def scenario(fleet: Fleet) -> None:
        fleet.start_operator("o1")
        await fleet.apply(chat(2))
        await fleet.settled("chat", 2)
        fleet.start_operator("o2")
        await asyncio.sleep(3)
        assert [operator.leads for operator in fleet.operators] == [True, False]
        fleet.pause("o1")
        await asyncio.sleep(8)
        assert [operator.leads for operator in fleet.operators] == [False, True]
        await fleet.apply(chat(2, seed="2"))
        await fleet.settled("chat", 2)
        lives = sum(len(driver.lives) for driver in fleet.drivers.values())
        fleet.resume("o1")
        await asyncio.sleep(20)
        assert [operator.leads for operator in fleet.operators] == [False, True]
        assert sum(len(driver.lives) for driver in fleet.drivers.values()) == lives
        assert len(fleet.of("chat")) == 2

    play(scenario)


def test_a_paused_operator_is_refused_by_hosts_that_obeyed_a_younger_one():
    async def scenario(fleet: Fleet) -> None:
        fleet.start_operator("o1")
        await fleet.apply(chat(1))
        await fleet.settled("chat", 1)
        # It stands still with an order under way: what it was about to send comes later.
        await fleet.want("chat", 2)
        fleet.pause("o1")
        fleet.start_operator("o2")
        await fleet.settled("chat", 2)
        await fleet.want("chat", 1)
        await fleet.settled("chat", 1)
        fleet.resume("o1")
        await asyncio.sleep(15)
        assert len(fleet.of("chat")) == 1

    play(scenario)


def test_a_lost_host_is_replaced_and_one_that_returns_is_used_again():
    async def scenario(fleet: Fleet) -> None:
        fleet.start_operator("o1")
        await fleet.apply(chat(4))
        await fleet.settled("chat", 4)
        fleet.kill("h0")
        await asyncio.sleep(1)
        await fleet.settled("chat", 4)
        assert {host for host, _ in fleet.living()} == {"h1"}
        fleet.start_host("h0b", machine="h0")
        await fleet.want("chat", 6)
        await fleet.settled("chat", 6)
        assert len({host for host, _ in fleet.living()}) == 2
        fleet.kill("h1")
        fleet.kill("h0b")
        fleet.start_host("h0c", machine="h0")
        fleet.start_host("h1b", machine="h1")
        await fleet.settled("chat", 6)

    play(scenario)


def test_without_a_bus_nothing_is_done_and_replicas_go_on():
    async def scenario(fleet: Fleet) -> None:
        fleet.start_operator("o1")
        await fleet.apply(chat(2))
        await fleet.settled("chat", 2)
        lives = [life.pid for _, life in fleet.living()]
        for name in ("o1", "h0", "h1"):
            fleet._lives[name].wire.cut()
        await asyncio.sleep(60)
        assert [life.pid for _, life in fleet.living()] == lives
        for name in ("o1", "h0", "h1"):
            fleet._lives[name].wire.heal()
        await asyncio.sleep(5)
        await fleet.settled("chat", 2)
        assert [life.pid for _, life in fleet.living()] == lives

    play(scenario)


def test_a_replica_that_ends_at_once_ten_times_is_shown_and_comes_in_the_end():
    async def scenario(fleet: Fleet) -> None:
        fleet.start_operator("o1")
        for driver in fleet.drivers.values():
            driver.crashes = 10
        await fleet.apply(chat(1))
        seen: set[ServicePhase] = set()
        reasons: set[str] = set()
        async with asyncio.timeout(3600):
            while True:
                status = await fleet.status("chat")
                if status is not None:
                    seen.add(status.phase)
                    reasons.add(status.reason)
                    if status.is_settled:
                        break
                await asyncio.sleep(0.5)
        assert ServicePhase.INITIALIZING in seen
        assert ServicePhase.FAILED in seen
        assert any("exit code 1" in reason for reason in reasons)

    play(scenario)


def test_several_services_share_a_fleet():
    async def scenario(fleet: Fleet) -> None:
        fleet.start_operator("o1")
        for number in range(12):
            await fleet.apply(chat(1 + number % 3, name=f"s{number}"))
        for number in range(12):
            await fleet.settled(f"s{number}", 1 + number % 3)
        for number in range(0, 12, 2):
            await fleet.delete(f"s{number}")
        for number in range(0, 12, 2):
            await fleet.gone(f"s{number}")
        assert len(fleet.living()) == sum(1 + number % 3 for number in range(1, 12, 2))

    play(scenario)
