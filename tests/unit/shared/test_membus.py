"""Faults of the memory bus: seeded, bounded, and the same each time."""

from __future__ import annotations

import asyncio

import pytest

from shared.errors import BusFull, RequestTimeout
from shared.membus import Faults, MemoryBus, set_faults
from shared.messages import Cancel, Resend, Resent
from tests.support.buses import MemoryWorld, World, until
from tests.support.samples import E1, answer, cancel, resend

MANY = 2_000


def received(faults: Faults, *, seed: int = 1, pause_s: float = 0.001) -> list[int]:
    """Return what arrives of `MANY` messages that are sent one after the other."""
    got: list[int] = []
    world = MemoryWorld(seed)

    async def scenario(world: World) -> None:
        assert isinstance(world, MemoryWorld)
        set_faults(world.hub, Cancel, faults)
        sender, receiver = await world.bus(), await world.bus()
        await receiver.subscribe(Cancel, lambda m: got.append(m.stream), engine=E1)
        for number in range(MANY):
            sender.publish(cancel(number))
            await asyncio.sleep(pause_s)
        await asyncio.sleep(10)

    world.run(scenario)
    return got


def test_without_faults_all_arrives_in_order():
    assert list(range(MANY)) == received(Faults())


def test_drops_come_at_about_their_ratio():
    got = received(Faults(drop_ratio=0.1))

    assert sorted(set(got)) == got
    assert MANY * 0.85 < len(got) < MANY * 0.95


def test_duplicates_come_at_about_their_ratio():
    got = received(Faults(duplicate_ratio=0.1))

    assert set(range(MANY)) == set(got)
    assert MANY * 1.05 < len(got) < MANY * 1.15


def test_delays_keep_the_order():
    assert list(range(MANY)) == received(Faults(delay_s=0.5))


def test_reordering_changes_the_order_and_loses_nothing():
    got = received(Faults(reorder_ratio=0.1, delay_s=0.05))

    assert list(range(MANY)) == sorted(got)
    assert list(range(MANY)) != got


def test_the_same_seed_gives_the_same_faults_and_another_seed_others():
    faults = Faults(drop_ratio=0.1, duplicate_ratio=0.1, reorder_ratio=0.1, delay_s=0.1)

    assert received(faults, seed=7) == received(faults, seed=7)
    assert received(faults, seed=7) != received(faults, seed=8)


def test_a_cut_off_participant_hears_nothing_and_what_it_says_waits():
    async def scenario(world: World) -> None:
        far, near = await world.bus(), await world.bus()
        assert isinstance(far, MemoryBus)
        at_far: list[int] = []
        at_near: list[int] = []
        losses: list[str] = []
        far.on_loss(losses.append)
        await far.subscribe(Cancel, lambda m: at_far.append(m.stream))
        await near.subscribe(Cancel, lambda m: at_near.append(m.stream))

        far.cut()
        assert not far.is_connected
        near.publish(cancel(1))
        far.publish(cancel(2))
        with pytest.raises(RequestTimeout):
            await far.request(resend(), timeout_s=1)
        assert ([1], []) == (at_near, at_far)
        far.heal()
        await until(lambda: at_far)

        assert ([1, 2], [2]) == (at_near, at_far)
        assert ["reconnect"] == losses

    MemoryWorld().run(scenario)


def test_a_frozen_participant_loses_nothing():
    async def scenario(world: World) -> None:
        far, near = await world.bus(), await world.bus()
        assert isinstance(far, MemoryBus)
        at_far: list[int] = []
        at_near: list[int] = []
        await far.subscribe(Cancel, lambda m: at_far.append(m.stream))
        await near.subscribe(Cancel, lambda m: at_near.append(m.stream))

        far.freeze()
        near.publish(cancel(1))
        far.publish(cancel(2))
        await asyncio.sleep(5)
        assert (True, False) == (far.is_connected, far.is_answering)
        assert ([1], []) == (at_near, at_far)
        far.thaw()
        await until(lambda: len(at_far) == 2)

        assert ([1, 2], [1, 2]) == (at_near, at_far)
        assert far.is_answering

    MemoryWorld().run(scenario)


def test_a_request_that_timed_out_during_a_cut_is_not_sent_after_it():
    async def scenario(world: World) -> None:
        client, server = await world.bus(), await world.bus()
        assert isinstance(client, MemoryBus)
        served: list[Resend] = []

        async def note(message: Resend) -> Resent:
            served.append(message)
            return await answer(message)

        await server.serve(Resend, note)
        client.cut()
        with pytest.raises(RequestTimeout):
            await client.request(resend(), timeout_s=1)
        client.heal()
        await client.request(resend(), timeout_s=1)

        assert 1 == len(served)

    MemoryWorld().run(scenario)


def test_the_buffer_of_a_cut_off_participant_is_bounded():
    async def scenario(world: World) -> None:
        assert isinstance(world, MemoryWorld)
        bus = await MemoryBus.join(world.hub, group=world.group, name="small", outbound_bytes=1_000)
        world.opened.append(bus)
        bus.cut()

        def fill() -> None:
            for number in range(100):
                bus.publish(cancel(number))

        with pytest.raises(BusFull):
            fill()
        bus.heal()
        bus.publish(cancel(1))

    MemoryWorld().run(scenario)


def test_a_lost_reply_is_a_timeout():
    async def scenario(world: World) -> None:
        assert isinstance(world, MemoryWorld)
        client, server = await world.bus(), await world.bus()
        await server.serve(Resend, answer)
        world.hub.set_faults("_INBOX.>", Faults(drop_ratio=1.0))

        with pytest.raises(RequestTimeout):
            await client.request(resend(), timeout_s=1)

    MemoryWorld().run(scenario)
