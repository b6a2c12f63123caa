"""Records on NATS servers as they are run: our configuration and its rights, a restart, other people's clients."""

from __future__ import annotations

import asyncio

import msgspec
import nats
import pytest

from shared.acl import CLIENT, SERVICES
from shared.ids import ServiceName
from shared.messages import ROUTES, DesiredRecord, LeaseRecord, ServiceRecord, StatusRecord
from shared.records import Records
from shared.streams import OWNER_SUBJECTS, READER_SUBJECTS, bucket_of, stream_name
from shared.typedbus import TypedBus
from tests.support.buses import NatsWorld, World, in_thread, until
from tests.support.guarded_nats import joined, refused
from tests.support.nats_server import NatsServer
from tests.support.records import BUCKET, desired, opened

KINDS = (ServiceRecord, DesiredRecord, StatusRecord, LeaseRecord)
SPEC = ServiceRecord(
    service=ServiceName("chat"), spec={"metadata": {"name": "chat"}}, generation=1, revision="r"
)


def for_nobody(stream: str) -> set[str]:
    """What would end a bucket, or reads it in ways that need no right of ours."""
    verbs = ("DELETE", "PURGE", "MSG.DELETE", "MSG.GET", "SNAPSHOT", "RESTORE")
    return {
        "$JS.API.STREAM.NAMES",
        "$KV.other.chat",
        *(f"$JS.API.STREAM.{verb}.{stream}" for verb in verbs),
        f"$JS.API.CONSUMER.CREATE.{stream}",
        f"$JS.API.DIRECT.GET.{stream}.$KV.{stream.removeprefix('KV_')}.chat",
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("user", [*SERVICES, CLIENT])
def test_nobody_may_do_more_to_a_bucket_than_their_part(
    guarded_server: NatsServer, user: str, kind: type[ServiceRecord]
):
    route, bucket = ROUTES[kind], bucket_of(kind)
    stream = stream_name(bucket)
    made = {subject.format(stream=stream) for subject in OWNER_SUBJECTS}
    read = {subject.format(stream=stream) for subject in READER_SUBJECTS}
    written = {f"$KV.{bucket.name}.chat"}
    writers = {route.owner, *route.writers}
    theirs = (
        (made if user == bucket.keeper else set())
        | (read if user in {*writers, *route.readers} else set())
        | (written if user in writers else set())
    )
    tried = {*for_nobody(stream), *made, *read, *written}

    found = asyncio.run(refused(guarded_server, user, tried, at_least=tried - theirs))

    assert tried - theirs == found


def test_each_service_does_its_part_with_the_rights_it_has(guarded_server: NatsServer):
    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            buses: list[TypedBus] = []

            async def records_of(user: str) -> Records:
                buses.append(await joined(guarded_server, user, group=group))
                return await Records.open(buses[-1])

            operator, console = await records_of("operator"), await records_of("console")
            gateway = await records_of("gateway")
            for kind in KINDS:
                await operator.ensure(kind)
            await operator.delete(ServiceRecord, "chat")
            view = await gateway.watch(ServiceRecord, lambda _: None, group=group)
            await until(lambda: view.is_read)
            revision = await console.put(SPEC, expected=0)
            await until(lambda: "chat" in view.entries)
            await operator.delete(ServiceRecord, "chat", expected=revision)
            await until(lambda: "chat" not in view.entries)
            view.stop()
            for bus in buses:
                await bus.close()

    asyncio.run(scenario())


def test_records_outlive_the_server_and_who_watches_goes_on(
    own_nats_server: NatsServer, service: ServiceName
):
    async def scenario(world: World) -> None:
        _, writer = await opened(world)
        bus, reader = await opened(world)
        async with asyncio.TaskGroup() as group:
            view = await reader.watch(DesiredRecord, lambda _: None, group=group)
            revision = await writer.put(desired(service, 1), expected=0)
            await until(lambda: service in view.entries)
            begun_s = asyncio.get_running_loop().time()

            await in_thread(own_nats_server.kill)
            await until(lambda: not bus.is_connected)
            assert service in view.entries
            await in_thread(own_nats_server.start)
            await until(
                lambda: view.age_s < asyncio.get_running_loop().time() - begun_s, timeout_s=10
            )

            entry = view.entries[service]
            assert (entry.record.replicas, entry.revision) == (1, revision)
            await writer.put(desired(service, 2), expected=revision)
            await until(lambda: view.entries[service].record.replicas == 2)
            view.stop()

    NatsWorld(own_nats_server.url).run(scenario)


def test_clients_of_nats_read_and_write_the_same_bucket(
    nats_server: NatsServer, service: ServiceName
):
    async def scenario(world: World) -> None:
        _, records = await opened(world)
        client = await nats.connect(nats_server.url)
        try:
            bucket = await client.jetstream().key_value(BUCKET)
            await records.put(desired(service, 4), expected=0)
            entry = await bucket.get(service)
            assert msgspec.json.decode(entry.value or b"")["replicas"] == 4
            await bucket.put(service, msgspec.json.encode(desired(service, 6)))
            found = await records.get(DesiredRecord, service)
            assert found is not None
            assert found.record.replicas == 6
            for end in (bucket.delete, bucket.purge):
                await end(service)
                assert await records.get(DesiredRecord, service) is None
                assert service not in await records.list(DesiredRecord)
                assert await records.put(desired(service, 7), expected=0)
            await records.delete(DesiredRecord, service)
            with pytest.raises(nats.js.errors.KeyNotFoundError):
                await bucket.get(service)
        finally:
            await client.close()

    NatsWorld(nats_server.url).run(scenario)


def test_what_clients_of_nats_write_that_is_no_record_hides_no_other(
    nats_server: NatsServer, service: ServiceName
):
    async def scenario(world: World) -> None:
        _, records = await opened(world)
        await records.put(desired(service, 1), expected=0)
        client = await nats.connect(nats_server.url)
        others = {f"{service}-x", f"a.{service}", f"{service}=/b"}
        try:
            bucket = await client.jetstream().key_value(BUCKET)
            for key in others:
                await bucket.put(key, b"garbage")
            reading = await records.read(DesiredRecord)
            assert service in reading.entries
            assert others <= reading.unreadable
            for key in others:
                await bucket.purge(key)
            assert not others & (await records.read(DesiredRecord)).unreadable
        finally:
            await client.close()

    NatsWorld(nats_server.url).run(scenario)
