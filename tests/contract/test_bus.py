"""What every bus promises about publishing and subscribing, on the memory bus and on a real NATS server."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from shared.codec import encode
from shared.errors import (
    TooBig,
    UserError,
)
from shared.ids import EngineId, ServiceName
from shared.messages import (
    Cancel,
    EngineHeartbeat,
    EngineState,
    TokenBatch,
)
from tests.support.buses import World, until
from tests.support.samples import E1, G1, batch, cancel


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


def test_repr_tells_the_state(world: World):
    async def scenario(world: World) -> None:
        bus = await world.bus()
        await bus.subscribe(Cancel, print)

        assert "up subscriptions=1 calls=0" in repr(bus)
        await bus.close()
        assert "closed" in repr(bus)

    world.run(scenario)


def test_a_message_that_names_itself_otherwise_than_its_subject_is_parked(world: World):
    async def scenario(world: World) -> None:
        sender, receiver = await world.bus(), await world.bus("watched")
        got: list[Cancel] = []
        await receiver.subscribe(Cancel, got.append, engine=E1)

        forged = msgspec.structs.replace(cancel(7), engine=EngineId("e-other"))
        sender._wire.send(f"hr.engine.{E1}.cancel", encode(forged))
        unnamed = msgspec.structs.replace(cancel(8), engine=EngineId("a\x1b[2J"))
        sender._wire.send(f"hr.engine.{E1}.cancel", encode(unnamed))
        sender.publish(cancel(1))
        await until(lambda: got)

        assert [cancel(1)] == got
        assert 2 == receiver.counts.undecodable

    world.run(scenario)
