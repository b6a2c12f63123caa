"""What the NATS bus promises beyond the common suite: a server that dies, freezes, refuses, is not there; readers that are too slow."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from shared.acl import SERVICES
from shared.bus import Bus
from shared.errors import BusClosed, BusFull, RequestTimeout, UserError
from shared.ids import EngineId, StreamNo, new_engine_id, new_gateway_id
from shared.messages import Cancel, Delta, Resend, Resent, TokenBatch
from shared.nats_config import ServerOptions, render
from shared.natsbus import NatsBus
from shared.settings import NatsSettings, Secret
from tests.support.buses import NatsWorld, World, until
from tests.support.nats_server import NatsServer, free_port

E1 = new_engine_id()
G1 = new_gateway_id()
RECONNECT_S = 5.0


def cancel(stream: int, engine: EngineId = E1) -> Cancel:
    return Cancel(engine=engine, gateway=G1, stream=StreamNo(stream))


def batch(text: str) -> TokenBatch:
    delta = Delta(stream=StreamNo(1), seq=0, choice=0, text=text, token_ids=[1])
    return TokenBatch(gateway=G1, engine=E1, deltas=[delta])


async def answer(message: Resend) -> Resent:
    return Resent(engine=message.engine, stream=message.stream, gone=True)


def resend() -> Resend:
    return Resend(engine=E1, gateway=G1, stream=StreamNo(1), from_seq=0)


async def in_thread(call: Callable[[], None]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, call)


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

        assert 9 == taken

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


def start(settings: NatsSettings, use: Callable[[NatsBus], Awaitable[None]] | None = None) -> None:
    """Connect, use and close; an error leaves as itself, not as a group."""

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            bus = await NatsBus.connect(settings, group=group, name="test bus")
            if use is not None:
                await use(bus)
            await bus.close()

    try:
        asyncio.run(scenario())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def test_no_server_at_start_is_told_within_the_timeout():
    port = free_port()
    start_s = time.monotonic()

    with pytest.raises(
        UserError,
        match=rf"no NATS server at nats://127.0.0.1:{port} within 0.5 s .*Connect call failed",
    ):
        start(NatsSettings(url=f"nats://127.0.0.1:{port}", connect_timeout_s=0.5))

    assert time.monotonic() - start_s < 5


def test_a_password_in_the_address_is_not_shown():
    url = f"nats://gateway:hush@127.0.0.1:{free_port()}"

    with pytest.raises(UserError, match="no NATS server at nats://127") as refusal:
        start(NatsSettings(url=url, connect_timeout_s=0.3))
    assert "hush" not in str(refusal.value)
    with pytest.raises(UserError, match="is no NATS address") as refusal:
        start(NatsSettings(url="http://gateway:hush@h:1"))
    assert "hush" not in str(refusal.value)


def test_a_server_that_comes_up_within_the_timeout_is_waited_for(tmp_path: Path):
    server = NatsServer(tmp_path)

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(in_thread(lambda: (time.sleep(0.5), server.start())[1]))
            bus = await NatsBus.connect(NatsSettings(url=server.url), group=group, name="early")
            await bus.close()

    try:
        asyncio.run(scenario())
    finally:
        server.kill()


@pytest.fixture
def guarded_server(tmp_path: Path):
    """A server with the product's own configuration: one user for each service."""
    port = free_port()
    options = ServerOptions(
        port=port,
        store_dir=str(tmp_path / "js"),
        passwords={service: f"pw-{service}" for service in SERVICES},
        open_api=False,
    )
    server = NatsServer(tmp_path, port=port, config=render(options))
    server.start()
    yield server
    server.kill()


@pytest.mark.parametrize("user", ["", "gateway", "nobody"])
def test_a_wrong_password_is_told_at_once_and_names_the_user(guarded_server: NatsServer, user: str):
    start_s = time.monotonic()

    with pytest.raises(UserError, match="refuses user") as refusal:
        start(
            NatsSettings(
                url=guarded_server.url, user=user, password=Secret("wrong"), connect_timeout_s=30
            )
        )

    assert time.monotonic() - start_s < 10
    assert "wrong" not in str(refusal.value)


def test_services_talk_with_the_permissions_that_follow_from_the_routes(guarded_server: NatsServer):
    def settings(user: str) -> NatsSettings:
        return NatsSettings(url=guarded_server.url, user=user, password=Secret(f"pw-{user}"))

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            gateway = await NatsBus.connect(settings("gateway"), group=group, name="gateway")
            engine = await NatsBus.connect(settings("engine"), group=group, name="engine")
            got: list[TokenBatch] = []
            await gateway.subscribe(TokenBatch, got.append, gateway=G1)
            await engine.serve(Resend, answer, engine=E1)
            engine.publish(batch("x"))
            assert await gateway.request(resend(), timeout_s=5)
            await until(lambda: got)
            await gateway.close()
            await engine.close()

    asyncio.run(scenario())


def test_a_message_that_the_user_may_not_send_is_logged_and_harms_nothing_else(
    guarded_server: NatsServer, capsys: pytest.CaptureFixture[str]
):
    settings = NatsSettings(url=guarded_server.url, user="engine", password=Secret("pw-engine"))

    async def use(bus: NatsBus) -> None:
        bus.publish(cancel(1))
        await bus.flush(timeout_s=5)
        bus.publish(batch("x"))
        await bus.flush(timeout_s=5)
        assert bus.is_connected

    start(settings, use)

    assert "permissions violation" in capsys.readouterr().out.lower()


def test_a_server_with_too_small_messages_is_refused(tmp_path: Path):
    server = NatsServer(tmp_path, config="max_payload: 65536\n")
    server.start()
    try:
        with pytest.raises(UserError, match="takes 65536 bytes a message"):
            start(NatsSettings(url=server.url))
    finally:
        server.kill()


@pytest.mark.parametrize(
    "url", ["", "http://127.0.0.1:4222", "127.0.0.1:4222", "nats://", "nats://127.0.0.1:port"]
)
def test_an_address_that_is_none_is_refused(url: str):
    with pytest.raises(UserError, match="is no NATS address"):
        start(NatsSettings(url=url))


def test_a_missing_certificate_file_is_named():
    with pytest.raises(UserError, match=r"no file /nowhere/ca\.pem"):
        start(NatsSettings(tls_ca="/nowhere/ca.pem"))


def test_the_service_ends_when_the_server_ends_the_connection_for_good(own_nats_server: NatsServer):
    async def use(bus: NatsBus) -> None:
        await bus.client.close()
        await asyncio.sleep(10)

    with pytest.raises(BusClosed, match="ended the connection for good"):
        start(NatsSettings(url=own_nats_server.url), use)


def test_a_frozen_server_at_start_is_told_within_the_timeout(own_nats_server: NatsServer):
    own_nats_server.pause()

    with pytest.raises(UserError, match="no NATS server"):
        start(NatsSettings(url=own_nats_server.url, connect_timeout_s=1))


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
