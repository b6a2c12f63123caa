"""What every bus promises about records, on the memory bus and on a real NATS server."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from typing_extensions import override

from shared.entry import Entry
from shared.errors import Conflict, NoHistory
from shared.ids import ServiceName
from shared.jetstream import JetStream
from shared.memstreams import Answer, MemoryStreams
from shared.messages import DesiredRecord, ServicePhase, StatusRecord
from shared.records import BEHIND_S, Records
from shared.streams import (
    NOT_FOUND_STATUS,
    PREVIOUS_HEADER,
    SEQUENCE_HEADER,
    bucket_config,
    bucket_of,
)
from shared.wire import STATUS_HEADER
from tests.support.buses import MemoryWorld, NatsWorld, World
from tests.support.records import BUCKET, desired, forget, opened


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
            await forget(world.url)
        records = await Records.open(await world.bus())
        service = ServiceName("nowhere")
        with pytest.raises(NoHistory):
            await records.get(DesiredRecord, service)
        with pytest.raises(NoHistory):
            await records.list(DesiredRecord)
        with pytest.raises(NoHistory):
            await records.put(desired(service, 1))

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


def test_a_list_misses_no_record_that_is_written_meanwhile(world: World, service: ServiceName):
    async def scenario(world: World) -> None:
        writer, reader = [await Records.open(await world.bus()) for _ in range(2)]
        await writer.ensure(StatusRecord)
        names = [ServiceName(f"{service}-{n}") for n in range(10)]
        states = [StatusRecord(service=name, phase=ServicePhase.RUNNING) for name in names]
        await asyncio.gather(*(writer.put(state) for state in states))

        async def write() -> None:
            for state in states * 30:
                await writer.put(state)

        async with asyncio.TaskGroup() as group:
            writing = group.create_task(write())
            while not writing.done():
                assert set(names) <= set(await reader.list(StatusRecord))

    world.run(scenario)


def test_a_key_that_holds_no_record_can_be_written_as_one_that_is_not_there(
    world: World, service: ServiceName
):
    async def scenario(world: World) -> None:
        bus, records = await opened(world)
        bus.wire.send(f"$KV.{BUCKET}.{service}", b"{")
        await bus.flush(timeout_s=2.0)
        assert await records.get(DesiredRecord, service) is None
        revision = await records.put(desired(service, 1), expected=0)
        assert await records.get(DesiredRecord, service) == Entry(desired(service, 1), revision)

    world.run(scenario)


def test_a_full_bucket_says_so_and_keeps_what_it_has(world: World, service: ServiceName):
    async def scenario(world: World) -> None:
        bus, records = await opened(world)
        used = msgspec.structs.replace(bucket_config(bucket_of(DesiredRecord)), max_bytes=1)
        await (await JetStream.open(bus, log="test")).ensure(used)
        before = await records.list(DesiredRecord)
        with pytest.raises(NoHistory, match="maximum bytes exceeded"):
            await records.put(desired(service, 1), expected=0)
        assert await records.list(DesiredRecord) == before
        await records.ensure(DesiredRecord)
        await records.put(desired(service, 1), expected=0)

    world.run(scenario)


class Behind(MemoryStreams):
    """A server of a cluster that does not have the third message yet, for a while; its leader has."""

    lacks_until_s = BEHIND_S

    @override
    def answer(self, subject: str, body: bytes) -> list[Answer]:
        """Answer without it."""
        answers = super().answer(subject, body)
        if len(answers) == 1 or asyncio.get_running_loop().time() > self.lacks_until_s:
            return answers
        *found, (end, _) = answers
        found = [one for one in found if one[0] and int(one[0][SEQUENCE_HEADER]) < 3]
        if not found:
            return [({STATUS_HEADER: NOT_FOUND_STATUS}, b"")]
        return [*found, ({**(end or {}), PREVIOUS_HEADER: str(len(found))}, b"")]


def test_what_a_server_of_a_cluster_does_not_have_yet_is_waited_for():
    async def scenario(world: MemoryWorld) -> None:
        world.hub.streams = Behind()
        _, records = await opened(world)
        names = [ServiceName(f"s{n}") for n in range(3)]
        for name in names:
            await records.put(desired(name, 1))
        assert set(names) == set(await records.list(DesiredRecord))
        assert asyncio.get_running_loop().time() > Behind.lacks_until_s

    MemoryWorld().run(scenario)
