"""Who watches a bucket sees in the end what holds, whatever was said or lost, on the memory bus and on a real NATS server."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from shared.ids import ServiceName
from shared.membus import Faults, set_faults
from shared.messages import DesiredRecord, RecordChanged
from shared.record_view import View
from shared.records import READ_AGAIN_S, Records
from tests.support.buses import MemoryWorld, NatsWorld, World, until
from tests.support.records import BUCKET, desired, forget, opened


def counts(view: View[DesiredRecord], service: ServiceName) -> int | None:
    entry = view.entries.get(service)
    return None if entry is None else entry.record.replicas


def test_who_watches_sees_what_was_there_and_every_later_state_in_the_end(
    world: World, service: ServiceName
):
    async def scenario(world: World) -> None:
        _, writer = await opened(world)
        revision = await writer.put(desired(service, 1), expected=0)
        calls: list[int | None] = []
        async with asyncio.TaskGroup() as group:
            bus, reader = await opened(world)
            view = await reader.watch(
                DesiredRecord, lambda view: calls.append(counts(view, service)), group=group
            )
            await until(lambda: view.is_read)
            assert counts(view, service) == 1
            assert view.age_s < 30
            revision = await writer.put(desired(service, 2), expected=revision)
            await until(lambda: counts(view, service) == 2)
            await writer.delete(DesiredRecord, service, expected=revision)
            await until(lambda: counts(view, service) is None)
            assert calls[0] == 1
            assert calls[-1] is None
            view.stop()
            await bus.close()

    world.run(scenario)


def test_who_watches_before_there_is_a_bucket_sees_it_when_it_is_there(
    world: World, service: ServiceName
):
    async def scenario(world: World) -> None:
        if isinstance(world, NatsWorld):
            await forget(world.url)
        async with asyncio.TaskGroup() as group:
            bus = await world.bus()
            view = await (await Records.open(bus)).watch(DesiredRecord, lambda _: None, group=group)
            await asyncio.sleep(0.05)
            assert not view.is_read
            _, writer = await opened(world)
            await writer.put(desired(service, 5), expected=0)
            await until(lambda: counts(view, service) == 5)
            view.stop()
            await bus.close()

    world.run(scenario)


def test_what_was_told_of_is_read_alone_and_the_rest_stays_as_old_as_it_is(
    world: World, service: ServiceName
):
    async def scenario(world: World) -> None:
        _, writer = await opened(world)
        async with asyncio.TaskGroup() as group:
            bus, reader = await opened(world)
            view = await reader.watch(DesiredRecord, lambda _: None, group=group)
            await until(lambda: view.is_read)
            begun_s = asyncio.get_running_loop().time()
            revision = 0
            for number in range(100):
                revision = await writer.put(desired(service, number), expected=revision)
            await until(lambda: counts(view, service) == 99)
            await writer.delete(DesiredRecord, service)
            await until(lambda: service not in view.entries)
            assert view.age_s >= asyncio.get_running_loop().time() - begun_s
            view.stop()
            await bus.close()

    world.run(scenario)


def test_more_writes_than_can_be_told_of_are_all_seen(world: World, service: ServiceName):
    async def scenario(world: World) -> None:
        _, writer = await opened(world)
        async with asyncio.TaskGroup() as group:
            bus, reader = await opened(world)
            view = await reader.watch(DesiredRecord, lambda _: None, group=group)
            await until(lambda: view.is_read)
            names = [ServiceName(f"{service}-{n}") for n in range(300)]
            await asyncio.gather(*(writer.put(desired(name, 1)) for name in names))
            await until(lambda: set(names) <= set(view.entries))
            view.stop()
            await bus.close()

    world.run(scenario)


def test_who_cannot_handle_a_record_still_sees_the_next(world: World, service: ServiceName):
    async def scenario(world: World) -> None:
        _, writer = await opened(world)
        seen: list[int | None] = []

        def look(view: View[DesiredRecord]) -> None:
            seen.append(counts(view, service))
            if seen[-1] == 1:
                raise ValueError("too much for me")

        async with asyncio.TaskGroup() as group:
            bus, reader = await opened(world)
            view = await reader.watch(DesiredRecord, look, group=group)
            await writer.put(desired(service, 1))
            await until(lambda: 1 in seen)
            await writer.put(desired(service, 2))
            await until(lambda: 2 in seen)
            view.stop()
            await bus.close()

    world.run(scenario)


@pytest.mark.parametrize("is_lost", [True, False])
def test_what_nobody_told_of_is_seen_within_half_a_minute(is_lost: bool):
    async def scenario(world: MemoryWorld) -> None:
        service = ServiceName("quiet")
        _, writer = await opened(world)
        bus, reader = await opened(world)
        view = await reader.watch(DesiredRecord, lambda _: None, group=world.group)
        await until(lambda: view.is_read)
        if is_lost:
            set_faults(world.hub, RecordChanged, Faults(drop_ratio=1.0))
            await writer.put(desired(service, 1))
        else:
            bus.wire.send(f"$KV.{BUCKET}.{service}", msgspec.json.encode(desired(service, 1)))
        await until(lambda: counts(view, service) == 1, timeout_s=READ_AGAIN_S + 1)
        view.stop()

    MemoryWorld().run(scenario)


def test_who_was_cut_off_reads_again_at_once():
    async def scenario(world: MemoryWorld) -> None:
        service = ServiceName("cut")
        _, writer = await opened(world)
        bus, reader = await opened(world)
        view = await reader.watch(DesiredRecord, lambda _: None, group=world.group)
        await until(lambda: view.is_read)
        bus.cut()
        await writer.put(desired(service, 1))
        await asyncio.sleep(2 * READ_AGAIN_S)
        assert view.age_s > READ_AGAIN_S
        bus.heal()
        await until(lambda: counts(view, service) == 1, timeout_s=0.1)
        view.stop()

    MemoryWorld().run(scenario)
