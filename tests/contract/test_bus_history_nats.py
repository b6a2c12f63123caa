"""History on NATS servers as they are run: our configuration and its rights, a restart, one without JetStream."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shared.acl import CLIENT, SERVICES
from shared.errors import NoHistory
from shared.history import History
from shared.messages import ROUTES, LedgerBatch
from shared.natsbus import NatsBus
from shared.settings import NatsSettings
from shared.streams import OWNER_SUBJECTS, READER_SUBJECTS, config_of, total_bytes
from tests.support.buses import NatsWorld, World, in_thread, start, until
from tests.support.guarded_nats import joined, refused
from tests.support.ledgers import ledgers, publish_kept, read, until_kept
from tests.support.nats_server import NatsServer

STREAM = config_of(LedgerBatch).name
ROUTE = ROUTES[LedgerBatch]
FOR_NOBODY = (
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    *(
        f"$JS.API.STREAM.{verb}.{STREAM}"
        for verb in ("DELETE", "PURGE", "MSG.DELETE", "MSG.GET", "SNAPSHOT", "RESTORE")
    ),
    f"$JS.API.CONSUMER.CREATE.{STREAM}",
    f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.d",
    f"$JS.API.CONSUMER.LIST.{STREAM}",
    *(subject.format(stream="OTHER") for subject in (*OWNER_SUBJECTS, *READER_SUBJECTS)),
)


def test_owner_and_readers_do_their_part_with_the_rights_they_have(guarded_server: NatsServer):
    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            buses = {
                user: await joined(guarded_server, user, group=group)
                for user in (ROUTE.owner, *ROUTE.readers)
            }
            owner = buses.pop(ROUTE.owner)
            keeper = await History.open(owner)
            await keeper.ensure(LedgerBatch)
            await keeper.ensure(LedgerBatch)
            for number, bus in enumerate(buses.values()):
                history = await History.open(bus)
                await publish_kept(owner, history, ledgers("rights", str(number)))
                names = [str(one) for one in range(number + 1)]
                assert names == await read(history.replay(LedgerBatch, since_s=60.0))
            for bus in (owner, *buses.values()):
                await bus.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("user", [*SERVICES, CLIENT])
def test_nobody_may_do_more_to_a_stream_than_their_part(guarded_server: NatsServer, user: str):
    owned = {subject.format(stream=STREAM) for subject in OWNER_SUBJECTS}
    read = {subject.format(stream=STREAM) for subject in READER_SUBJECTS}
    theirs = (owned if user == ROUTE.owner else set()) | (read if user in ROUTE.readers else set())
    tried = {*FOR_NOBODY, *owned, *read}

    found = asyncio.run(refused(guarded_server, user, tried, at_least=tried - theirs))

    assert tried - theirs == found


def test_after_a_restart_of_the_server_history_begins_anew(own_nats_server: NatsServer):
    async def scenario(world: World) -> None:
        bus = await world.bus()
        history = await History.open(bus)
        keeping = world.group.create_task(history.keep(LedgerBatch))  # type: ignore[attr-defined]
        await until_kept(history)
        await publish_kept(bus, history, ledgers("restart", "before"))

        await in_thread(own_nats_server.kill)
        await until(lambda: not bus.is_connected)
        await in_thread(own_nats_server.start)
        await until_kept(history)
        await publish_kept(bus, history, ledgers("restart", "after"))

        assert ["after"] == await read(history.replay(LedgerBatch))
        keeping.cancel()

    NatsWorld(own_nats_server.url).run(scenario)


def test_without_jetstream_messages_arrive_and_history_says_why_there_is_none(tmp_path: Path):
    server = NatsServer(tmp_path, config="# no jetstream\n")

    async def use(bus: NatsBus) -> None:
        got: list[LedgerBatch] = []
        history = await History.open(bus)
        await bus.subscribe(LedgerBatch, got.append)

        with pytest.raises(NoHistory, match="JetStream is off"):
            await history.ensure(LedgerBatch)
        with pytest.raises(NoHistory, match="JetStream is off"):
            await anext(history.replay(LedgerBatch))
        bus.publish(ledgers("live", "a"))
        await until(lambda: got)

    server.start()
    try:
        start(NatsSettings(url=server.url), use)
    finally:
        server.kill()


def test_a_server_with_memory_for_one_such_stream_is_enough_for_all_gateways(tmp_path: Path):
    store = f'jetstream {{ store_dir: "{tmp_path}/js", max_memory_store: {total_bytes()} }}\n'
    server = NatsServer(tmp_path, config=store)

    async def use(bus: NatsBus) -> None:
        history = await History.open(bus)
        for _ in range(2):
            await history.ensure(LedgerBatch)

    server.start()
    try:
        start(NatsSettings(url=server.url), use)
    finally:
        server.kill()
