"""The proxy that makes the network bad: what is healthy passes unchanged, each fault does what it says and ends when it is lifted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.msg import Msg

from tests.support.buses import until
from tests.support.fault_proxy import CUT, FROZEN, FaultProxy, Link, LinkFaults
from tests.support.nats_frames import Frame, FrameSplitter, Mangler, MessageFaults
from tests.support.nats_server import NatsServer

FRAMES = (
    b'INFO {"headers":true}\r\n',
    b"PING\r\n",
    b"MSG a.b 1 5\r\nhe\r\no\r\n",
    b"HMSG a.c 2 inbox.1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
    b"-ERR 'no'\r\n",
    b"MSG a.b 1 0\r\n\r\n",
    b"PONG\r\n",
)


@pytest.fixture
def proxy(nats_server: NatsServer) -> Iterator[FaultProxy]:
    with FaultProxy(nats_server.port, seed=1) as made:
        yield made


class Pair:
    """A publisher straight at the server, and a subscriber behind a link."""

    def __init__(self, link: Link, server: NatsServer) -> None:
        self._link = link
        self._server = server
        self.got: list[int] = []
        self.subject = f"t.{link.port}"

    async def __aenter__(self) -> Pair:
        self._near = await nats.connect(self._server.url)
        self._far = await nats.connect(self._link.url)
        await self._far.subscribe(self.subject, cb=self._take)
        await self._far.flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._near.close()
        await self._far.close()

    async def _take(self, message: Msg) -> None:
        self.got.append(int(message.data))

    async def say(self, *numbers: int) -> None:
        """Publish numbers."""
        for number in numbers:
            await self._near.publish(self.subject, b"%d" % number)
        await self._near.flush()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(bounded())


@given(st.lists(st.integers(1, 9), max_size=40))
def test_frames_are_found_however_the_bytes_arrive(sizes):
    stream, splitter, got = b"".join(FRAMES), FrameSplitter(), []

    for size in [*sizes, len(stream)]:
        got += splitter.feed(stream[:size])
        stream = stream[size:]

    assert list(FRAMES) == [frame.content for frame in got]
    assert ["", "", "a.b", "a.c", "", "a.b", ""] == [frame.subject for frame in got]


def test_only_messages_that_match_suffer_and_a_seed_decides():
    faults = MessageFaults(pattern="a.*", drop_ratio=0.3, duplicate_ratio=0.3, reorder_ratio=0.3)
    message = Frame(b"", "a.b")

    one, two = Mangler(5), Mangler(5)
    fates = [one.fate(message, faults) for _ in range(300)]

    assert fates == [two.fate(message, faults) for _ in range(300)]
    assert {0, 1, 2} == {len(fate) for fate in fates}
    assert 50 < one.dropped < 130
    assert all([0.0] == one.fate(Frame(b"", name), faults) for name in ("", "b.b", "a.b.c"))
    assert [0.0] == one.fate(message, None)


def test_a_healthy_link_passes_all_in_order(proxy, nats_server):
    async def scenario() -> None:
        async with Pair(proxy.add("peer"), nats_server) as pair:
            await pair.say(*range(2000))
            await until(lambda: len(pair.got) == 2000)

            assert list(range(2000)) == pair.got

    run(scenario)


def test_a_frozen_link_holds_all_and_then_passes_it(proxy, nats_server):
    async def scenario() -> None:
        link = proxy.add("peer")
        async with Pair(link, nats_server) as pair:
            proxy.set(FROZEN)
            await pair.say(1, 2, 3)
            await asyncio.sleep(0.1)
            held = list(pair.got)
            proxy.heal()
            await until(lambda: [1, 2, 3] == pair.got)

            assert [] == held
            assert 1 == link.connects

    run(scenario)


def test_a_cut_hits_the_chosen_link_and_ends(proxy):
    async def greeting(link: Link) -> bytes:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
            line = await reader.readline()
            writer.transport.abort()
            return line
        return b""

    async def scenario() -> None:
        one, other = proxy.add("one"), proxy.add("other")
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        assert (await reader.readline()).startswith(b"INFO")

        proxy.set(CUT, one)
        rest = b"".join([line async for line in reader])
        during = [await greeting(link) for link in (one, other)]
        proxy.heal()
        after = await greeting(one)
        writer.close()

        assert b"" == rest == during[0]
        assert during[1].startswith(b"INFO")
        assert after.startswith(b"INFO")
        assert (3, 1) == (one.connects, other.connects)

    run(scenario)


def test_a_slow_and_narrow_link_is_late_but_whole(proxy, nats_server):
    async def scenario() -> None:
        async with Pair(proxy.add("peer"), nats_server) as pair:
            loop = asyncio.get_running_loop()
            proxy.set(LinkFaults(delay_s=0.1, bytes_per_s=20_000))
            began_at = loop.time()
            await pair.say(*range(500))
            await until(lambda: len(pair.got) == 500, timeout_s=30.0)

            assert loop.time() - began_at > 0.4
            assert list(range(500)) == pair.got

    run(scenario)


def test_messages_are_dropped_doubled_and_late(proxy, nats_server):
    async def scenario() -> None:
        link = proxy.add("peer")
        async with Pair(link, nats_server) as pair:
            suffering = MessageFaults(
                pattern="t.>", drop_ratio=0.1, duplicate_ratio=0.2, reorder_ratio=0.2
            )
            proxy.set(LinkFaults(messages=suffering))
            await pair.say(*range(500))
            mangler = link.mangler
            await until(lambda: len(pair.got) == 500 - mangler.dropped + mangler.duplicated)

            assert min(mangler.dropped, mangler.duplicated, mangler.reordered) > 10
            assert set(pair.got) < set(range(500))
            assert pair.got != sorted(pair.got)

    run(scenario)
