"""What every bus promises about records, on the memory bus and on a real NATS server."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import nats
import pytest

from shared.errors import Conflict, NoHistory
from shared.ids import ServiceName
from shared.messages import DesiredRecord
from shared.records import Records, View
from shared.streams import bucket_config, bucket_of
from shared.typedbus import TypedBus
from tests.support.buses import MemoryWorld, NatsWorld, World, until

_numbers = itertools.count()
BUCKET = bucket_of(DesiredRecord).name


@pytest.fixture
def service() -> ServiceName:
    """A service of this test's own: the server outlives it, and so do records."""
    return ServiceName(f"records-{next(_numbers)}")


def desired(service: ServiceName, replicas: int) -> DesiredRecord:
    return DesiredRecord(service=service, replicas=replicas, by="console")


async def opened(world: World) -> tuple[TypedBus, Records]:
    """A bus and its records, with the bucket there."""
    bus = await world.bus()
    records = await Records.open(bus)
    await records.ensure(DesiredRecord)
    return bus, records


def test_what_one_wrote_another_reads(world: World, service: ServiceName):
    async def scenario(world: World) -> None:
        _, writer = await opened(world)
        _, reader = await opened(world)
        assert await reader.get(DesiredRecord, service) is None
        first = await writer.put(desired(service, 1), expected=0)
        second = await writer.put(desired(service, 2), expected=first)
        assert second > first
        entry = await reader.get(DesiredRecord, service)
        assert entry is not None
        assert (entry.record.replicas, entry.revision) == (2, second)
        assert (await reader.list(DesiredRecord))[service] == entry

    world.run(scenario)


def test_a_write_against_an_older_state_is_a_conflict_and_changes_nothing(
    world: World, service: ServiceName
):
    async def scenario(world: World) -> None:
        _, records = await opened(world)
        first = await records.put(desired(service, 1), expected=0)
        await records.put(desired(service, 2), expected=first)
        for expected in (0, first):
            with pytest.raises(Conflict):
                await records.put(desired(service, 9), expected=expected)
            with pytest.raises(Conflict):
                await records.delete(DesiredRecord, service, expected=first)
        entry = await records.get(DesiredRecord, service)
        assert entry is not None
        assert entry.record.replicas == 2

    world.run(scenario)


def test_of_two_who_write_at_the_same_time_one_wins(world: World, service: ServiceName):
    async def scenario(world: World) -> None:
        sides = [await opened(world) for _ in range(4)]
        found = await asyncio.gather(
            *(one.put(desired(service, n), expected=0) for n, (_, one) in enumerate(sides)),
            return_exceptions=True,
        )
        assert sum(isinstance(one, int) for one in found) == 1
        assert sum(isinstance(one, Conflict) for one in found) == 3

    world.run(scenario)


def test_a_deleted_record_is_gone_and_can_be_made_anew(world: World, service: ServiceName):
    async def scenario(world: World) -> None:
        _, records = await opened(world)
        revision = await records.put(desired(service, 1), expected=0)
        await records.delete(DesiredRecord, service, expected=revision)
        await records.delete(DesiredRecord, service)
        assert await records.get(DesiredRecord, service) is None
        assert service not in await records.list(DesiredRecord)
        again = await records.put(desired(service, 3), expected=0)
        assert again > revision
        with pytest.raises(Conflict):
            await records.put(desired(service, 4), expected=0)

    world.run(scenario)


def test_a_bucket_that_is_not_there_is_said_to_be_missing(world: World):
    async def scenario(world: World) -> None:
        if isinstance(world, NatsWorld):
            await forget(world)
        records = await Records.open(await world.bus())
        service = ServiceName("nowhere")
        with pytest.raises(NoHistory):
            await records.get(DesiredRecord, service)
        with pytest.raises(NoHistory):
            await records.list(DesiredRecord)
        with pytest.raises(NoHistory):
            await records.put(desired(service, 1))

    world.run(scenario)


async def forget(world: NatsWorld) -> None:
    client = await nats.connect(world._settings.url)
    try:
        await client.jetstream().delete_stream(f"KV_{BUCKET}")
    except nats.js.errors.NotFoundError:
        pass
    finally:
        await client.close()


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
            await forget(world)
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


def test_what_is_no_record_is_skipped_and_hides_no_other(world: World, service: ServiceName):
    async def scenario(world: World) -> None:
        bus, records = await opened(world)
        await records.put(desired(service, 1), expected=0)
        other = f"{service}-x"
        for payload in (b"", b"{", b"[1]", msgspec.json.encode(desired(service, 7)), b"\xff" * 9):
            bus.wire.send(f"$KV.{BUCKET}.{other}", payload)
            await bus.flush(timeout_s=2.0)
            found = await records.list(DesiredRecord)
            assert other not in found
            assert found[service].record.replicas == 1
            assert await records.get(DesiredRecord, other) is None
            assert (await records.read(DesiredRecord)).unreadable == {other}
        await records.delete(DesiredRecord, other)
        assert (await records.read(DesiredRecord)).unreadable == frozenset()

    world.run(scenario)


def test_several_pages_of_records_are_read_whole(world: World, service: ServiceName):
    async def scenario(world: World) -> None:
        _, records = await opened(world)
        names = [ServiceName(f"{service}-{n}") for n in range(150)]
        for turn in (1, 2):
            await asyncio.gather(*(records.put(desired(name, turn)) for name in names))
        found = await records.list(DesiredRecord)
        assert {found[name].record.replicas for name in names} == {2}

    world.run(scenario)


def test_the_history_of_a_key_is_bounded(world: World, service: ServiceName):
    async def scenario(world: World) -> None:
        _, records = await opened(world)
        for number in range(20):
            await records.put(desired(service, number))
        entry = await records.get(DesiredRecord, service)
        assert entry is not None
        assert entry.record.replicas == 19
        if isinstance(world, MemoryWorld):
            assert world.hub.streams is not None
            stream = world.hub.streams._streams[bucket_config(bucket_of(DesiredRecord)).name]
            assert len(stream._kept) <= bucket_of(DesiredRecord).history

    world.run(scenario)


@pytest.mark.nats
def test_clients_of_nats_read_and_write_the_same_bucket(nats_server, service: ServiceName):
    async def scenario(world: World) -> None:
        bus, records = await opened(world)
        client = await nats.connect(nats_server.url)
        try:
            bucket = await client.jetstream().key_value(BUCKET)
            await records.put(desired(service, 4), expected=0)
            entry = await bucket.get(service)
            assert msgspec.json.decode(entry.value)["replicas"] == 4
            await bucket.put(service, msgspec.json.encode(desired(service, 6)))
            found = await records.get(DesiredRecord, service)
            assert found is not None
            assert found.record.replicas == 6
            await bucket.delete(service)
            assert await records.get(DesiredRecord, service) is None
            assert await records.put(desired(service, 7), expected=0)
        finally:
            await client.close()
        assert bus.is_connected

    NatsWorld(nats_server.url).run(scenario)
