"""What the NATS bus promises beyond the common suite: a server that dies, freezes or goes silent; readers that are too slow."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from nats import errors

from shared.bus import Bus
from shared.errors import BusClosed, BusFull, RequestTimeout
from shared.messages import ENGINE_GONE_S, HEARTBEAT_S, Cancel, Resend, Resent, TokenBatch
from shared.natsbus import NatsBus
from shared.natspings import PROBE_S
from shared.natswire import EASE_BYTES
from shared.settings import NatsSettings
from tests.support.buses import NatsWorld, World, in_thread, start, until
from tests.support.fault_proxy import FROZEN, FaultProxy
from tests.support.hostile_nats import STEPS, hostile
from tests.support.nats_server import NatsServer
from tests.support.samples import E1, G1, answer, batch, cancel, resend

RECONNECT_S = 5.0


async def publish_until_full(bus: Bus, message: Callable[[int], TokenBatch], *, why: str) -> int:
    """Return how many messages were taken before `BusFull`."""
    taken = 0

    async def publish_on() -> None:
        nonlocal taken
        while taken < 1_000:
            bus.publish(message(taken))
            taken += 1
            await asyncio.sleep(0)

    with pytest.raises(BusFull, match=f"the NATS server is {why}"):
        await publish_on()
    return taken


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_after_an_end_of_the_server_everything_works_again_within_5_s(
    own_nats_server: NatsServer, how: str
):
    async def scenario(world: World) -> None:
        sender, receiver = await world.bus(), await world.bus()
        got: list[int] = []
        losses: list[str] = []
        receiver.on_loss(losses.append)
        await receiver.subscribe(Cancel, lambda m: got.append(m.stream), engine=E1)
        await receiver.serve(Resend, answer, engine=E1)
        sender.publish(cancel(0))
        await until(lambda: got)

        await in_thread(getattr(own_nats_server, how))
        await until(lambda: not sender.is_connected and not receiver.is_connected)
        await in_thread(own_nats_server.start)
        start_s = time.monotonic()
        async with asyncio.timeout(RECONNECT_S):
            await until(
                lambda: receiver.is_connected and sender.is_connected, timeout_s=RECONNECT_S
            )
            await sender.flush(timeout_s=RECONNECT_S)
            await receiver.flush(timeout_s=RECONNECT_S)
            sender.publish(cancel(1))
            await until(lambda: 1 in got)
            assert await sender.request(resend(), timeout_s=RECONNECT_S)

        assert time.monotonic() - start_s < RECONNECT_S
        assert ["reconnect"] == losses
        assert 1 == receiver.counts.losses

    NatsWorld(own_nats_server.url).run(scenario)


def test_a_server_that_stands_still_is_noticed_before_silence_means_death(
    own_nats_server: NatsServer,
):
    async def scenario(world: World) -> None:
        bus = await world.bus()
        await asyncio.sleep(3 * PROBE_S)
        before = bus.is_answering

        own_nats_server.pause()
        began_s = time.monotonic()
        await until(lambda: not bus.is_answering)
        noticed_s = time.monotonic() - began_s
        connected = bus.is_connected
        own_nats_server.resume()
        await until(lambda: bus.is_answering)

        assert before
        assert connected
        assert noticed_s + HEARTBEAT_S < ENGINE_GONE_S

    NatsWorld(own_nats_server.url).run(scenario)


def test_what_is_published_while_the_server_is_away_leaves_in_order_when_it_is_back(
    own_nats_server: NatsServer,
):
    async def scenario(world: World) -> None:
        bus = await world.bus()
        got: list[int] = []
        await bus.subscribe(Cancel, lambda m: got.append(m.stream), engine=E1)

        own_nats_server.kill()
        await until(lambda: not bus.is_connected)
        for number in range(20_000):
            bus.publish(cancel(number))
        await in_thread(own_nats_server.start)
        await until(lambda: len(got) == 20_000, timeout_s=10)

        assert list(range(20_000)) == got

    NatsWorld(own_nats_server.url).run(scenario)


def test_beyond_the_bound_publishing_is_refused_and_what_was_taken_is_kept(
    own_nats_server: NatsServer,
):
    async def scenario(world: World) -> None:
        bus = await world.bus()
        got: list[str] = []
        await bus.subscribe(TokenBatch, lambda m: got.append(m.deltas[0].text), gateway=G1)
        own_nats_server.kill()
        await until(lambda: not bus.is_connected)

        taken = await publish_until_full(bus, lambda n: batch("x" * 10_000), why="away")
        await in_thread(own_nats_server.start)
        await until(lambda: len(got) == taken, timeout_s=10)

        assert 9 == taken  # 10,000 bytes and a bit each

    NatsWorld(own_nats_server.url, outbound_bytes=100_000).run(scenario)


def test_a_request_that_timed_out_while_the_server_was_away_is_not_sent_later(
    own_nats_server: NatsServer,
):
    async def scenario(world: World) -> None:
        client = await world.bus()
        served: list[Resend] = []

        async def note(message: Resend) -> Resent:
            served.append(message)
            return await answer(message)

        await client.serve(Resend, note, engine=E1)
        own_nats_server.kill()
        await until(lambda: not client.is_connected)
        with pytest.raises(RequestTimeout):
            await client.request(resend(), timeout_s=0.1)
        await in_thread(own_nats_server.start)
        await client.flush(timeout_s=RECONNECT_S)
        await client.request(resend(), timeout_s=RECONNECT_S)

        assert 1 == len(served)

    NatsWorld(own_nats_server.url).run(scenario)


def test_a_frozen_server_loses_nothing_and_blocks_nobody(own_nats_server: NatsServer):
    async def scenario(world: World) -> None:
        sender, receiver = await world.bus(), await world.bus()
        got: list[int] = []
        await receiver.subscribe(Cancel, lambda m: got.append(m.stream), engine=E1)
        loop = asyncio.get_running_loop()

        own_nats_server.pause()
        start_s = loop.time()
        for number in range(5_000):
            sender.publish(cancel(number))
        took_s = loop.time() - start_s
        with pytest.raises(RequestTimeout):
            await sender.flush(timeout_s=1)
        own_nats_server.resume()
        await until(lambda: len(got) == 5_000)
        await sender.flush(timeout_s=5)

        assert took_s < 1
        assert list(range(5_000)) == got

    NatsWorld(own_nats_server.url).run(scenario)


def test_a_frozen_server_fills_the_buffer_up_to_its_bound_and_then_all_of_it_arrives(
    own_nats_server: NatsServer,
):
    """The kernel and nats-py hold some megabytes; after them the bus's own bound counts, and no byte of it is lost."""

    async def scenario(world: World) -> None:
        sender, receiver = await world.bus(), await world.bus()
        got: list[str] = []
        await receiver.subscribe(TokenBatch, lambda m: got.append(m.deltas[0].text[:8]), gateway=G1)
        own_nats_server.pause()

        taken = await publish_until_full(
            sender, lambda n: batch(f"{n:08}" + "x" * 100_000), why="slow"
        )
        own_nats_server.resume()
        await until(lambda: len(got) == taken, timeout_s=10)

        assert [f"{n:08}" for n in range(taken)] == got
        assert taken > 40

    NatsWorld(own_nats_server.url, outbound_bytes=4 << 20).run(scenario)


def test_closing_while_the_server_is_frozen_ends_within_its_deadline(own_nats_server: NatsServer):
    async def scenario(world: World) -> None:
        bus = await world.bus()
        await bus.subscribe(Cancel, print, engine=E1)
        loop = asyncio.get_running_loop()
        own_nats_server.pause()
        for _ in range(100):
            bus.publish(batch("x" * 100_000))

        start_s = loop.time()
        await bus.close(drain_s=0.5)

        assert loop.time() - start_s < 4

    NatsWorld(own_nats_server.url).run(scenario)


def test_closing_while_the_server_is_away_ends_within_its_deadline(own_nats_server: NatsServer):
    async def scenario(world: World) -> None:
        bus = await world.bus()
        await bus.subscribe(Cancel, print, engine=E1)
        loop = asyncio.get_running_loop()
        own_nats_server.kill()
        await until(lambda: not bus.is_connected)
        bus.publish(cancel(1))

        start_s = loop.time()
        await bus.close(drain_s=0.5)

        assert loop.time() - start_s < 4

    NatsWorld(own_nats_server.url).run(scenario)


def test_a_reader_that_is_too_slow_is_told_that_messages_were_lost(own_nats_server: NatsServer):
    async def scenario(world: World) -> None:
        sender, receiver = await world.bus(), await world.bus()
        losses: list[str] = []
        got: list[int] = []

        def slow(message: Cancel) -> None:
            got.append(message.stream)
            time.sleep(0.01)

        receiver.on_loss(losses.append)
        await receiver.subscribe(Cancel, slow, engine=E1)
        for number in range(200):
            sender.publish(cancel(number))
        await until(lambda: losses)
        await asyncio.sleep(0.2)
        sender.publish(cancel(777))
        await until(lambda: 777 in got)

        assert {"slow reader"} == set(losses)
        assert got == sorted(got)

    NatsWorld(own_nats_server.url, pending_messages=10).run(scenario)


def test_the_service_ends_when_the_server_ends_the_connection_for_good(own_nats_server: NatsServer):
    async def use(bus: NatsBus) -> None:
        await bus.client.close()
        await asyncio.sleep(10)

    with pytest.raises(BusClosed, match="ended the connection for good"):
        start(NatsSettings(url=own_nats_server.url), use)


@pytest.mark.parametrize("step", STEPS)
def test_reconnecting_survives_a_server_that_resets_in_the_middle_of_the_greeting(
    own_nats_server: NatsServer, step: str
):
    async def scenario(world: World) -> None:
        bus = await world.bus()
        got: list[int] = []
        await bus.subscribe(Cancel, lambda m: got.append(m.stream), engine=E1)

        own_nats_server.kill()
        with hostile(own_nats_server.port, step) as server:
            await until(lambda: server.taken >= 3, timeout_s=15)
        await in_thread(own_nats_server.start)
        await until(lambda: bus.is_connected, timeout_s=RECONNECT_S)
        await bus.flush(timeout_s=RECONNECT_S)
        bus.publish(cancel(1))
        await until(lambda: got)

    NatsWorld(own_nats_server.url).run(scenario)


def test_unsent_bytes_on_a_dead_connection_do_not_hold_up_reconnecting(nats_server: NatsServer):
    with FaultProxy(nats_server.port) as proxy:
        link = proxy.add("peer")

        async def scenario(world: World) -> None:
            bus = await world.bus()
            assert isinstance(bus, NatsBus)
            client = bus.client
            proxy.set(FROZEN)
            async with asyncio.timeout(10):
                while client.pending_data_size <= EASE_BYTES:
                    bus.publish(batch("x" * 100_000))
                    await asyncio.sleep(0.001)
            # What nats-py does about 15 s later by itself.
            await client._process_op_err(errors.StaleConnectionError())
            await until(lambda: link.connects > 1)
            proxy.heal()
            await until(lambda: bus.is_connected, timeout_s=RECONNECT_S)

        NatsWorld(link.url).run(scenario)


def test_the_service_ends_when_reconnecting_has_stopped_without_a_word(own_nats_server: NatsServer):
    async def use(bus: NatsBus) -> None:
        own_nats_server.kill()
        await until(lambda: not bus.is_connected)
        task = bus.client._reconnection_task
        assert task is not None
        task.cancel()
        bus._wire._tried_s -= 60  # type: ignore[attr-defined]
        await asyncio.sleep(10)

    with pytest.raises(BusClosed, match="reconnecting to the NATS server has stopped"):
        start(NatsSettings(url=own_nats_server.url), use)


def test_a_server_that_accepts_and_says_nothing_costs_no_descriptors(own_nats_server: NatsServer):
    """What a frozen server looks like to those who reconnect: the kernel accepts, nobody speaks."""

    async def scenario(world: World) -> None:
        bus = await world.bus()
        own_nats_server.kill()
        with socket.create_server(("127.0.0.1", own_nats_server.port)):
            await until(lambda: not bus.is_connected)
            before = open_descriptors()
            await until(lambda: bus.client._server_pool[0].reconnects >= 3, timeout_s=20)
            assert open_descriptors() - before <= 2
        await in_thread(own_nats_server.start)
        await until(lambda: bus.is_connected, timeout_s=RECONNECT_S)

    NatsWorld(own_nats_server.url, connect_timeout_s=0.5).run(scenario)


def test_when_the_service_fails_the_bus_closes_quickly_and_sends_its_last_words(
    own_nats_server: NatsServer,
):
    settings = NatsSettings(url=own_nats_server.url)
    got: list[int] = []

    async def fail() -> None:
        await asyncio.sleep(0.05)
        raise KeyError("a bug")

    async def serve() -> None:
        async with asyncio.TaskGroup() as group:
            bus = await NatsBus.connect(settings, group=group, name="failing")
            await bus.serve(Resend, answer, engine=E1)
            group.create_task(fail())
            try:
                await asyncio.sleep(10)
            finally:
                bus.publish(cancel(7))
                await bus.close(drain_s=5)

    async def scenario(world: World) -> None:
        watcher = await world.bus()
        await watcher.subscribe(Cancel, lambda m: got.append(m.stream), engine=E1)
        start_s = time.monotonic()
        with pytest.raises(ExceptionGroup) as failure:
            await serve()
        assert failure.group_contains(KeyError)
        assert time.monotonic() - start_s < 3
        await until(lambda: got)

    NatsWorld(own_nats_server.url).run(scenario)

    assert [7] == got


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
