"""What every bus promises about what was published before, on the memory bus and on a real NATS server."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import nats
import pytest

from shared.errors import NoHistory
from shared.history import History
from shared.jetstream import PAGE_BYTES
from shared.messages import ROUTES, Cancel, LedgerBatch
from shared.streams import CREATE_SUBJECT, INFO_SUBJECT, config_of
from shared.subjects import fill
from shared.typedbus import TypedBus
from tests.support.buses import MemoryWorld, NatsWorld, World
from tests.support.ledgers import ledgers, publish_kept, read, requests_of, until_kept

STREAM = config_of(LedgerBatch).name
_numbers = itertools.count()


@pytest.fixture
def service() -> str:
    """A service of this test's own: the server outlives it, and so does what it keeps."""
    return f"history-{next(_numbers)}"


async def lose_streams(world: World) -> None:
    """Let the server forget what it keeps."""
    if isinstance(world, MemoryWorld):
        assert world.hub.streams is not None
        world.hub.streams.forget()
        return
    assert isinstance(world, NatsWorld)
    client = await nats.connect(world._settings.url)
    try:
        await client.jetstream().delete_stream(STREAM)
    except nats.js.errors.NotFoundError:
        pass
    finally:
        await client.close()


async def kept(world: World) -> tuple[TypedBus, History]:
    """Return a bus and its history, with a stream there."""
    bus = await world.bus()
    history = await History.open(bus)
    await history.ensure(LedgerBatch)
    return bus, history


def test_who_comes_later_reads_what_was_published_oldest_first(world: World, service: str):
    async def scenario(world: World) -> None:
        sender, reader = await kept(world)
        await publish_kept(
            sender,
            reader,
            ledgers(service, "a", "b"),
            ledgers(f"{service}-other", "x"),
            ledgers(service, "c"),
        )
        history = await History.open(await world.bus())

        assert ["a", "b", "c"] == await read(history.replay(LedgerBatch, service=service))
        assert ["x"] == await read(history.replay(LedgerBatch, service=f"{service}-other"))
        assert ["a", "b", "x", "c"] == (await read(history.replay(LedgerBatch)))[-4:]

    world.run(scenario)


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_long_history_comes_whole_and_in_order_from_either_end(
    world: World, service: str, newest_first: bool
):
    async def scenario(world: World) -> None:
        bus, history = await kept(world)
        names = [str(number) for number in range(1_000)]
        for name in names[:-1]:
            if int(name) % 3 == 0:
                bus.publish(ledgers(f"{service}-other", name))
            bus.publish(ledgers(service, name))
        await publish_kept(bus, history, ledgers(service, names[-1]))

        got = await read(history.replay(LedgerBatch, newest_first=newest_first, service=service))

        assert (names[::-1] if newest_first else names) == got

    world.run(scenario)


def test_a_limit_counts_messages_from_the_end_that_is_read_first(world: World, service: str):
    async def scenario(world: World) -> None:
        bus, history = await kept(world)
        await publish_kept(bus, history, *(ledgers(service, name) for name in "abcde"))

        for newest_first, expected in ((False, ["a", "b"]), (True, ["e", "d"])):
            replay = history.replay(
                LedgerBatch, limit=2, newest_first=newest_first, service=service
            )
            assert expected == await read(replay)
        assert [] == await read(history.replay(LedgerBatch, limit=0, service=service))

    world.run(scenario)


def test_only_the_last_seconds_are_replayed_where_they_are_asked_for(world: World, service: str):
    async def scenario(world: World) -> None:
        bus, history = await kept(world)
        await publish_kept(bus, history, ledgers(service, "old"))
        await asyncio.sleep(0.1)
        between_s = asyncio.get_running_loop().time()
        await asyncio.sleep(0.5)
        await publish_kept(bus, history, ledgers(service, "new"))

        for newest_first in (False, True):
            since_s = asyncio.get_running_loop().time() - between_s
            replay = history.replay(
                LedgerBatch, since_s=since_s, newest_first=newest_first, service=service
            )
            assert ["new"] == await read(replay)
        for since_s in (60, 1e18):
            replay = history.replay(LedgerBatch, since_s=since_s, service=service)
            assert ["old", "new"] == await read(replay)
        await asyncio.sleep(0.2)
        assert [] == await read(history.replay(LedgerBatch, since_s=0.1, service=service))

    world.run(scenario)


def test_a_replay_ends_with_what_was_there_when_it_began(world: World, service: str):
    async def scenario(world: World) -> None:
        bus, history = await kept(world)
        await publish_kept(bus, history, *(ledgers(service, str(number)) for number in range(100)))
        replay = history.replay(LedgerBatch, service=service)

        first = await anext(replay)
        await publish_kept(bus, history, ledgers(service, "late"))
        rest = await read(replay)

        assert [str(number) for number in range(100)] == [*requests_of([first]), *rest]

    world.run(scenario)


def test_messages_that_are_larger_than_a_page_are_replayed(world: World, service: str):
    async def scenario(world: World) -> None:
        bus, history = await kept(world)
        big = "x" * (bus.max_payload * 9 // 10)
        names = [str(number) for number in range(8)]
        await publish_kept(
            bus, history, *(ledgers(service, name, trace_state=big) for name in names)
        )

        assert bus.max_payload * 7 > PAGE_BYTES
        for newest_first, expected in ((False, names), (True, names[::-1])):
            replay = history.replay(LedgerBatch, newest_first=newest_first, service=service)
            assert expected == await read(replay)

    world.run(scenario)


def test_an_undecodable_message_is_skipped_and_counted(world: World, service: str):
    async def scenario(world: World) -> None:
        bus, history = await kept(world)
        subject = fill(ROUTES[LedgerBatch].subject, {"service": service})
        await publish_kept(bus, history, ledgers(service, "a"))
        bus.wire.send(subject, b"\xc1")
        await publish_kept(bus, history, ledgers(service, "b"))

        got = await read(history.replay(LedgerBatch, limit=2, service=service))

        assert ["a", "b"] == got
        assert 1 == bus.counts.undecodable

    world.run(scenario)


def test_without_a_stream_there_is_no_history(world: World):
    async def scenario(world: World) -> None:
        history = await History.open(await world.bus())
        await lose_streams(world)

        with pytest.raises(NoHistory, match="no HR_LEDGER: stream not found"):
            await read(history.replay(LedgerBatch))

    world.run(scenario)


def test_what_the_server_never_keeps_cannot_be_asked_for(world: World):
    async def scenario(world: World) -> None:
        history = await History.open(await world.bus())

        with pytest.raises(TypeError, match="Cancel is not kept"):
            await history.ensure(Cancel)

    world.run(scenario)


def test_ensuring_again_keeps_what_is_there_and_mends_the_limits(world: World, service: str):
    async def scenario(world: World) -> None:
        bus, history = await kept(world)
        await lose_streams(world)
        whole = config_of(LedgerBatch)
        smaller = msgspec.structs.replace(whole, max_bytes=1 << 20, max_age=whole.max_age // 2)
        await history._jetstream.api(CREATE_SUBJECT, STREAM, msgspec.json.encode(smaller))
        await publish_kept(bus, history, ledgers(service, "a"))

        for _ in range(2):
            await history.ensure(LedgerBatch)

        answer = await history._jetstream.api(INFO_SUBJECT, STREAM, b"")
        assert whole == answer.config
        assert ["a"] == await read(history.replay(LedgerBatch, service=service))

    world.run(scenario)


def test_a_kept_stream_that_was_lost_is_there_again_after_a_reconnect(world: World, service: str):
    async def scenario(world: World) -> None:
        bus, reader = await world.bus(), await History.open(await world.bus())
        history = await History.open(bus)
        keeping = world.group.create_task(history.keep(LedgerBatch))  # type: ignore[attr-defined]
        await until_kept(reader)

        await lose_streams(world)
        bus.report_loss("reconnect")
        await until_kept(reader)
        await publish_kept(bus, reader, ledgers(service, "a"))

        assert ["a"] == await read(reader.replay(LedgerBatch, service=service))
        await bus.close()
        await lose_streams(world)
        bus.report_loss("reconnect")
        await asyncio.wait_for(keeping, 5)

    world.run(scenario)
