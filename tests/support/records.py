"""Records for tests, and buses with their bucket there."""

from __future__ import annotations

import nats

from shared.ids import ServiceName
from shared.messages import DesiredRecord
from shared.records import Records
from shared.streams import bucket_of, stream_name
from shared.typedbus import TypedBus
from tests.support.buses import World

BUCKET = bucket_of(DesiredRecord).name


def desired(service: ServiceName, replicas: int) -> DesiredRecord:
    return DesiredRecord(service=service, replicas=replicas, by="console")


async def opened(world: World) -> tuple[TypedBus, Records]:
    """A bus and its records, with the bucket there."""
    bus = await world.bus()
    records = await Records.open(bus)
    await records.ensure(DesiredRecord)
    return bus, records


async def forget(url: str) -> None:
    """Take the bucket from a server, as nobody of ours may."""
    client = await nats.connect(url)
    try:
        await client.jetstream().delete_stream(stream_name(bucket_of(DesiredRecord)))
    except nats.js.errors.NotFoundError:
        pass
    finally:
        await client.close()
