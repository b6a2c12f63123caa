"""What every bus promises, on the memory bus and on a real NATS server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from shared.errors import (
    BusClosed,
    NoResponder,
    RemoteBusy,
    RemoteFailed,
    RequestTimeout,
    TooBig,
    UserError,
)
from shared.ids import EngineId, GatewayId, ServiceName, StreamNo, new_engine_id, new_gateway_id
from shared.messages import (
    Accepted,
    Cancel,
    Delta,
    EngineHeartbeat,
    EngineState,
    GatewayHeartbeat,
    Resend,
    Resent,
    TokenBatch,
)
from tests.support.buses import MemoryWorld, NatsWorld, World, until
from tests.support.nats_server import NatsServer

E1, E2 = new_engine_id(), new_engine_id()
G1 = new_gateway_id()


@pytest.fixture(params=["memory", "nats"])
def world(request: pytest.FixtureRequest, nats_server: NatsServer) -> World:
    return MemoryWorld() if request.param == "memory" else NatsWorld(nats_server.url)


def cancel(stream: int, engine: EngineId = E1) -> Cancel:
    return Cancel(engine=engine, gateway=G1, stream=StreamNo(stream))


def resend(stream: int = 1, engine: EngineId = E1) -> Resend:
    return Resend(engine=engine, gateway=G1, stream=StreamNo(stream), from_seq=0)


async def answer(message: Resend) -> Resent:
    return Resent(engine=message.engine, stream=message.stream, gone=True)


def batch(text: str) -> TokenBatch:
    delta = Delta(stream=StreamNo(1), seq=0, choice=0, text=text, token_ids=[1])
    return TokenBatch(gateway=G1, engine=E1, deltas=[delta])


def test_a_message_arrives_whole_at_every_subscriber(world: World):
    async def scenario(world: World) -> None:
        sender, first, second = [await world.bus() for _ in range(3)]
        got: list[TokenBatch] = []
        await first.subscribe(TokenBatch, got.append, gateway=G1)
        await second.subscribe(TokenBatch, got.append, gateway=G1)

        sender.publish(batch("häй"))
        await until(lambda: len(got) == 2)

        assert [batch("häй")] * 2 == got

    world.run(scenario)


def test_a_sender_hears_itself_when_it_subscribed(world: World):
    async def scenario(world: World) -> None:
        bus = await world.bus()
        got: list[Cancel] = []
        await bus.subscribe(Cancel, got.append, engine=E1)

        bus.publish(cancel(1))
        await until(lambda: got)

    world.run(scenario)


def test_messages_of_a_sender_keep_their_order(world: World):
    async def scenario(world: World) -> None:
        sender, receiver = await world.bus(), await world.bus()
        got: list[int] = []
        await receiver.subscribe(Cancel, lambda m: got.append(m.stream), engine=E1)

        for number in range(5_000):
            sender.publish(cancel(number))
        await until(lambda: len(got) == 5_000)

        assert list(range(5_000)) == got

    world.run(scenario)


def test_a_request_does_not_overtake_what_was_published_before(world: World):
    async def scenario(world: World) -> None:
        sender, receiver = await world.bus(), await world.bus()
        seen: list[str] = []

        async def serve(message: Resend) -> Resent:
            seen.append("request")
            return await answer(message)

        await receiver.subscribe(Cancel, lambda m: seen.append("cancel"), engine=E2)
        await receiver.serve(Resend, serve, engine=E2)
        sender.publish(cancel(1, E2))
        await sender.request(resend(engine=E2), timeout_s=5)

        assert ["cancel", "request"] == seen

    world.run(scenario)


def test_keys_that_are_not_fixed_match_anything(world: World):
    async def scenario(world: World) -> None:
        sender, receiver = await world.bus(), await world.bus()
        services = ServiceName("wild-a"), ServiceName("wild-b")
        everything: list[str] = []
        of_a: list[str] = []
        await receiver.subscribe(EngineHeartbeat, lambda m: everything.append(m.service))
        await receiver.subscribe(
            EngineHeartbeat, lambda m: of_a.append(m.service), service=services[0]
        )

        for beat, service in enumerate(services):
            sender.publish(
                EngineHeartbeat(
                    engine=E1, service=service, beat=beat, state=EngineState.READY, backend="fake"
                )
            )
        await until(lambda: len(everything) == 2 and of_a)

        assert list(services) == everything
        assert [services[0]] == of_a

    world.run(scenario)


def test_an_unknown_key_is_refused(world: World):
    async def scenario(world: World) -> None:
        bus = await world.bus()

        with pytest.raises(TypeError, match="zone"):
            await bus.subscribe(Cancel, print, zone="a")

    world.run(scenario)


@pytest.mark.parametrize("name", ["", "a.b", "*", ">", "a b", "a\n", "a\r\nPUB x 0\r\n", "x" * 200])
def test_a_name_that_is_no_subject_token_is_refused(world: World, name: str):
    async def scenario(world: World) -> None:
        bus = await world.bus()
        beat = EngineHeartbeat(
            engine=E1, service=ServiceName(name), beat=1, state=EngineState.READY, backend="fake"
        )

        with pytest.raises(UserError):
            bus.publish(beat)
        with pytest.raises(UserError):
            await bus.subscribe(EngineHeartbeat, print, service=name)

    world.run(scenario)


def test_exactly_one_of_a_queue_group_gets_each_message(world: World):
    async def scenario(world: World) -> None:
        sender, *members = [await world.bus() for _ in range(4)]
        got: list[int] = []
        outside: list[int] = []
        for member in members:
            await member.subscribe(Cancel, lambda m: got.append(m.stream), queue="q", engine=E1)
        await members[0].subscribe(Cancel, lambda m: outside.append(m.stream), engine=E1)

        for number in range(300):
            sender.publish(cancel(number))
        await until(lambda: len(got) >= 300 and len(outside) == 300)
        await asyncio.sleep(0.05)

        assert list(range(300)) == sorted(got)

    world.run(scenario)


def test_a_request_gets_its_reply(world: World):
    async def scenario(world: World) -> None:
        client, server = await world.bus(), await world.bus()
        await server.serve(Resend, answer, engine=E1)

        replies = await asyncio.gather(
            *(client.request(resend(number), timeout_s=5) for number in range(50))
        )

        expected = [Resent(engine=E1, stream=StreamNo(n), gone=True) for n in range(50)]
        assert expected == list(replies)

    world.run(scenario)


def test_nobody_there_is_told_at_once(world: World):
    async def scenario(world: World) -> None:
        bus = await world.bus()
        start_s = asyncio.get_running_loop().time()

        with pytest.raises(NoResponder):
            await bus.request(resend(engine=new_engine_id()), timeout_s=30)

        assert asyncio.get_running_loop().time() - start_s < 5

    world.run(scenario)


def test_no_reply_in_time_is_a_timeout(world: World):
    async def scenario(world: World) -> None:
        client, server = await world.bus(), await world.bus()
        never = asyncio.Event()

        async def hang(message: Resend) -> Resent:
            await never.wait()
            return await answer(message)

        await server.serve(Resend, hang, engine=E1)

        with pytest.raises(RequestTimeout, match=r"0\.2 s"):
            await client.request(resend(), timeout_s=0.2)
        never.set()

    world.run(scenario)


def test_a_failure_of_the_other_side_is_told_with_its_message(world: World):
    async def scenario(world: World) -> None:
        client, server = await world.bus(), await world.bus()

        async def fail(message: Resend) -> Resent:
            raise ValueError("ring is\nbroken")

        await server.serve(Resend, fail, engine=E1)

        with pytest.raises(RemoteFailed, match="ValueError: ring is broken"):
            await client.request(resend(), timeout_s=5)
        assert 1 == server.counts.handler_errors

    world.run(scenario)


def test_a_reply_of_a_wrong_type_is_a_failure(world: World):
    async def scenario(world: World) -> None:
        client, server = await world.bus(), await world.bus()

        async def confuse(message: Resend) -> Accepted:
            return Accepted(engine=E1, stream=message.stream, prompt_tokens=1)

        await server.serve(Resend, confuse, engine=E1)

        with pytest.raises(RemoteFailed, match="Accepted is no reply to Resend"):
            await client.request(resend(), timeout_s=5)

    world.run(scenario)


def test_a_server_at_its_bound_says_so_at_once(world: World):
    async def scenario(world: World) -> None:
        client, server = await world.bus(), await world.bus()
        release = asyncio.Event()

        async def slow(message: Resend) -> Resent:
            await release.wait()
            return await answer(message)

        await server.serve(Resend, slow, max_pending=2, engine=E1)
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(client.request(resend(n), timeout_s=5)) for n in range(2)]
            await asyncio.sleep(0.05)
            with pytest.raises(RemoteBusy):
                await client.request(resend(9), timeout_s=5)
            release.set()
        await client.request(resend(), timeout_s=5)

        assert all(task.result() for task in running)

    world.run(scenario)


def test_a_message_near_the_limit_travels_and_one_beyond_it_is_refused(world: World):
    async def scenario(world: World) -> None:
        sender, receiver = await world.bus(), await world.bus()
        got: list[TokenBatch] = []
        await receiver.subscribe(TokenBatch, got.append, gateway=G1)

        sender.publish(batch("x" * (sender.max_payload - 200)))
        with pytest.raises(TooBig) as refusal:
            sender.publish(batch("x" * sender.max_payload))
        sender.publish(batch("small"))
        await until(lambda: len(got) == 2)

        assert sender.max_payload == refusal.value.max_bytes
        assert "small" == got[1].deltas[0].text

    world.run(scenario)


def test_after_unsubscribing_nothing_comes(world: World):
    async def scenario(world: World) -> None:
        sender, receiver = await world.bus(), await world.bus()
        got: list[Cancel] = []
        kept: list[Cancel] = []
        subscription = await receiver.subscribe(Cancel, got.append, engine=E1)
        await receiver.subscribe(Cancel, kept.append, engine=E1)

        await subscription.close()
        await subscription.close()
        sender.publish(cancel(1))
        await until(lambda: kept)
        await asyncio.sleep(0.02)

        assert not got

    world.run(scenario)


def test_an_exception_in_a_handler_does_not_end_the_subscription(world: World):
    async def scenario(world: World) -> None:
        sender, receiver = await world.bus(), await world.bus()
        got: list[int] = []

        def handle(message: Cancel) -> None:
            if message.stream == 0:
                raise KeyError("unknown stream")
            got.append(message.stream)

        await receiver.subscribe(Cancel, handle, engine=E1)
        for number in range(3):
            sender.publish(cancel(number))
        await until(lambda: len(got) == 2)

        assert [1, 2] == got
        assert 1 == receiver.counts.handler_errors

    world.run(scenario)


def test_a_coroutine_function_is_refused_as_handler(world: World):
    async def scenario(world: World) -> None:
        bus = await world.bus()

        async def handle(message: Cancel) -> None: ...

        with pytest.raises(TypeError, match="synchronous"):
            await bus.subscribe(Cancel, handle)  # type: ignore[arg-type]

    world.run(scenario)


class Strange(msgspec.Struct, tag="gateway.cancel.v9", tag_field="t"):
    """What a newer sender might send."""

    stream: str = "x"


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x81", b"[]", msgspec.msgpack.encode(Strange()), b"\x91" * 3_000],
    ids=["empty", "no msgpack", "cut off", "json", "other tag", "deep"],
)
def test_an_undecodable_message_is_parked_and_the_next_one_arrives(world: World, payload: bytes):
    async def scenario(world: World) -> None:
        sender, receiver, watcher = await world.bus(), await world.bus("watched"), await world.bus()
        got: list[Cancel] = []
        parked: list[tuple[bytes, str]] = []

        def park(subject: str, body: bytes, _: str, headers: object) -> None:
            assert isinstance(headers, dict)
            parked.append((body, headers["Hr-Subject"]))

        await watcher._wire.listen("hr.dead.watched", park)
        await receiver.subscribe(Cancel, got.append, engine=E1)
        sender._wire.send(f"hr.engine.{E1}.cancel", payload)
        sender.publish(cancel(1))
        await until(lambda: got and parked)

        assert [(payload, f"hr.engine.{E1}.cancel")] == parked
        assert 1 == receiver.counts.undecodable

    world.run(scenario)


def test_an_undecodable_request_is_answered_as_failed(world: World):
    async def scenario(world: World) -> None:
        client, server = await world.bus(), await world.bus()
        await server.serve(Resend, answer, engine=E1)
        answers: list[object] = []
        await client._wire.listen("_INBOX.undecodable", lambda s, b, r, h: answers.append(h))

        client._wire.send(f"hr.engine.{E1}.resend", b"\xc1", reply="_INBOX.undecodable")
        await until(lambda: answers)

        assert "400" == answers[0]["Nats-Service-Error-Code"]  # type: ignore[index]

    world.run(scenario)


def test_flush_returns_when_the_server_has_all(world: World):
    async def scenario(world: World) -> None:
        sender, receiver = await world.bus(), await world.bus()
        got: list[int] = []
        await receiver.subscribe(Cancel, lambda m: got.append(m.stream), engine=E1)

        for number in range(1_000):
            sender.publish(cancel(number))
        await sender.flush(timeout_s=5)
        await sender.close()
        await until(lambda: len(got) == 1_000)

    world.run(scenario)


def test_close_delivers_what_was_published_and_what_has_arrived(world: World):
    async def scenario(world: World) -> None:
        sender, receiver = await world.bus(), await world.bus()
        got: list[int] = []
        await receiver.subscribe(Cancel, lambda m: got.append(m.stream), engine=E1)

        for number in range(1_000):
            sender.publish(cancel(number))
        await sender.close()
        await receiver.close()

        assert list(range(1_000)) == got

    world.run(scenario)


def test_close_lets_served_calls_finish(world: World):
    async def scenario(world: World) -> None:
        client, server = await world.bus(), await world.bus()
        begun = asyncio.Event()

        async def slow(message: Resend) -> Resent:
            begun.set()
            await asyncio.sleep(0.1)
            return await answer(message)

        await server.serve(Resend, slow, engine=E1)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(client.request(resend(), timeout_s=5))
            await begun.wait()
            await server.close(drain_s=2)

        assert call.result()

    world.run(scenario)


def test_close_cancels_served_calls_beyond_the_deadline(world: World):
    async def scenario(world: World) -> None:
        client, server = await world.bus(), await world.bus()
        cancelled = asyncio.Event()
        begun = asyncio.Event()

        async def hang(message: Resend) -> Resent:
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                cancelled.set()
            return await answer(message)

        await server.serve(Resend, hang, engine=E1)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(swallow(client.request(resend(), timeout_s=1)))
            await begun.wait()
            await server.close(drain_s=0.05)
            await cancelled.wait()
            await call

    world.run(scenario)


async def swallow(call: asyncio.Future[object] | object) -> None:
    with pytest.raises(RequestTimeout):
        await call  # type: ignore[misc]


USES: dict[str, Callable[[object], object]] = {
    "publish": lambda bus: bus.publish(cancel(1)),  # type: ignore[attr-defined]
    "request": lambda bus: bus.request(resend(), timeout_s=1),  # type: ignore[attr-defined]
    "subscribe": lambda bus: bus.subscribe(Cancel, print),  # type: ignore[attr-defined]
    "serve": lambda bus: bus.serve(Resend, answer),  # type: ignore[attr-defined]
    "flush": lambda bus: bus.flush(timeout_s=1),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("use", USES)
def test_a_closed_bus_refuses_everything(world: World, use: str):
    async def scenario(world: World) -> None:
        bus = await world.bus()
        await bus.close()
        await bus.close()

        assert not bus.is_connected
        with pytest.raises(BusClosed):
            await apply(USES[use], bus)

    world.run(scenario)


async def apply(use: Callable[[object], object], bus: object) -> None:
    result = use(bus)
    if asyncio.iscoroutine(result):
        await result


def test_a_waiting_request_ends_when_its_bus_closes(world: World):
    async def scenario(world: World) -> None:
        client, server = await world.bus(), await world.bus()
        never = asyncio.Event()

        async def hang(message: Resend) -> Resent:
            await never.wait()
            return await answer(message)

        await server.serve(Resend, hang, engine=E1)

        async def ask() -> None:
            with pytest.raises(BusClosed):
                await client.request(resend(), timeout_s=60)

        async with asyncio.TaskGroup() as group:
            group.create_task(ask())
            await asyncio.sleep(0.05)
            await client.close()
        never.set()

    world.run(scenario)


def test_only_requests_can_be_requested(world: World):
    async def scenario(world: World) -> None:
        bus = await world.bus()

        with pytest.raises(TypeError, match="published, not requested"):
            await bus.request(GatewayHeartbeat(gateway=GatewayId("g"), beat=1), timeout_s=1)

    world.run(scenario)


def test_repr_tells_the_state(world: World):
    async def scenario(world: World) -> None:
        bus = await world.bus()
        await bus.subscribe(Cancel, print)

        assert "up subscriptions=1 calls=0" in repr(bus)
        await bus.close()
        assert "closed" in repr(bus)

    world.run(scenario)
