"""History where the server misbehaves or is away, and how much the memory hub keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from shared.errors import NoHistory, RequestTimeout
from shared.history import History
from shared.jetstream import API_S, LOOK_S
from shared.memstreams import Answer, MemoryStreams
from shared.messages import ROUTES, LedgerBatch
from shared.streams import GET_SUBJECT, INFO_SUBJECT, StreamConfig, config_of
from shared.subjects import pattern
from tests.support.buses import MemoryWorld, World
from tests.support.ledgers import ledgers, read, requests_of

STREAM = ROUTES[LedgerBatch].stream
assert STREAM is not None


class Tampered(MemoryStreams):
    """Streams whose answers to a read are changed on the way."""

    def __init__(self, change) -> None:
        super().__init__()
        self._change = change

    def answer(self, subject: str, body: bytes) -> list[Answer]:
        answers = super().answer(subject, body)
        is_read = subject == GET_SUBJECT.format(stream=STREAM.name)
        return self._change(answers) if is_read else answers


def without_batches(answers: list[Answer]) -> list[Answer]:
    """As a server before 2.11, which answers with one message."""
    headers, payload = answers[0]
    assert headers is not None
    return [({"Nats-Sequence": headers["Nats-Sequence"]}, payload)]


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        pytest.param(lambda a: a[1:], RequestTimeout, "were lost", id="the first is lost"),
        pytest.param(lambda a: [a[0], *a[2:]], RequestTimeout, "were lost", id="one is lost"),
        pytest.param(
            lambda a: [*a[:-2], a[-1]], RequestTimeout, "were lost", id="the last one is lost"
        ),
        pytest.param(lambda a: a[-1:], RequestTimeout, "were lost", id="all are lost"),
        pytest.param(lambda a: a[:-1], RequestTimeout, "no answer", id="the end is lost"),
        pytest.param(without_batches, NoHistory, r"NATS 2\.11 is needed", id="an old server"),
        pytest.param(
            lambda _: [({"Status": "408", "Description": "Bad Request"}, b"")],
            NoHistory,
            "Bad Request",
            id="a refusal",
        ),
    ],
)
def test_a_page_that_did_not_come_whole_is_an_error(change, error, told):
    async def scenario(world: World) -> None:
        assert isinstance(world, MemoryWorld)
        world.hub.streams = Tampered(change)
        bus = await world.bus()
        history = await History.open(bus)
        await history.ensure(LedgerBatch)
        for name in "abc":
            bus.publish(ledgers("s", name))

        with pytest.raises(error, match=told):
            await read(history.replay(LedgerBatch))

    MemoryWorld().run(scenario)


def test_a_server_that_does_not_answer_is_given_up_after_the_deadline():
    async def scenario(world: World) -> None:
        bus, silent = await world.bus(), await world.bus()

        def ignore(_: str, __: bytes, ___: str, ____: Mapping[str, str] | None) -> None:
            """Answer nothing."""

        assert isinstance(world, MemoryWorld)
        world.hub.streams = None
        await silent.wire.listen(INFO_SUBJECT.format(stream=STREAM.name), ignore)
        history = await History.open(bus)
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        with pytest.raises(NoHistory, match="is not for us"):
            await read(history.replay(LedgerBatch))

        assert API_S == pytest.approx(loop.time() - began_s)
        assert not history._jetstream._calls

    MemoryWorld().run(scenario)


def test_a_stream_that_cannot_be_kept_is_one_warning_and_live_delivery_goes_on(
    capsys: pytest.CaptureFixture[str],
):
    async def scenario(world: World) -> None:
        assert isinstance(world, MemoryWorld)
        streams, world.hub.streams = world.hub.streams, None
        bus = await world.bus()
        got: list[LedgerBatch] = []
        await bus.subscribe(LedgerBatch, got.append)
        history = await History.open(bus)
        keeping = world.group.create_task(history.keep(LedgerBatch))
        await asyncio.sleep(3600)
        bus.publish(ledgers("s", "a"))
        await asyncio.sleep(1)
        assert ["a"] == requests_of(got)

        world.hub.streams = streams
        bus.report_loss("reconnect")
        await asyncio.sleep(1)
        assert [] == await read(history.replay(LedgerBatch))
        streams.forget()
        await asyncio.sleep(LOOK_S)
        assert [] == await read(history.replay(LedgerBatch))
        keeping.cancel()

    MemoryWorld().run(scenario)

    logged = capsys.readouterr().out
    assert 1 == logged.count("history_unavailable")
    assert 1 == logged.count("history_available")


def test_the_memory_hub_keeps_no_longer_than_the_stream_allows():
    async def scenario(world: World) -> None:
        bus = await world.bus()
        history = await History.open(bus)
        await history.ensure(LedgerBatch)
        bus.publish(ledgers("s", "a"))
        await asyncio.sleep(STREAM.max_age_s / 2)
        bus.publish(ledgers("s", "b"))

        await asyncio.sleep(STREAM.max_age_s / 2 - 1)
        assert ["a", "b"] == await read(history.replay(LedgerBatch))
        await asyncio.sleep(2)
        assert ["b"] == await read(history.replay(LedgerBatch))
        await asyncio.sleep(STREAM.max_age_s)
        assert [] == await read(history.replay(LedgerBatch))

    MemoryWorld().run(scenario)


def test_the_memory_hub_keeps_no_more_bytes_than_the_stream_allows():
    async def scenario(world: World) -> None:
        assert isinstance(world, MemoryWorld)
        assert world.hub.streams is not None
        bus = await world.bus()
        history = await History.open(bus)
        config = StreamConfig(
            name=STREAM.name,
            subjects=[pattern(LedgerBatch, {})],
            max_age=config_of(LedgerBatch).max_age,
            max_bytes=1_000,
        )
        world.hub.streams._configure(STREAM.name, config)
        for number in range(100):
            bus.publish(ledgers("s", str(number)))

        got = await read(history.replay(LedgerBatch))

        assert [str(number) for number in range(100 - len(got), 100)] == got
        assert 1 <= len(got) <= 1_000 // 100

    MemoryWorld().run(scenario)
