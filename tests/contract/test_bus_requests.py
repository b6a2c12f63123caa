"""What every bus promises about requests, on the memory bus and on a real NATS server."""

from __future__ import annotations

import asyncio

import pytest

from shared.errors import (
    BusClosed,
    BusError,
    NoResponder,
    RemoteBusy,
    RemoteFailed,
    RequestTimeout,
)
from shared.ids import GatewayId, StreamNo, new_engine_id
from shared.messages import (
    Accepted,
    Cancel,
    GatewayHeartbeat,
    Message,
    Resend,
    Resent,
)
from tests.support.buses import World, until
from tests.support.samples import E1, E2, answer, cancel, resend


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


def test_who_asks_is_called_back_once_with_the_reply_or_the_error(world: World):
    async def scenario(world: World) -> None:
        client, server = await world.bus(), await world.bus()
        never = asyncio.Event()

        async def hang(message: Resend) -> Resent:
            await never.wait()
            return await answer(message)

        await server.serve(Resend, answer, engine=E1)
        await server.serve(Resend, hang, engine=E2)
        told: list[Message | BusError] = []
        client.ask(resend(7), timeout_s=5, on_answer=told.append)
        assert [] == told
        await until(lambda: len(told) == 1)
        client.ask(resend(engine=new_engine_id()), timeout_s=5, on_answer=told.append)
        await until(lambda: len(told) == 2)
        client.ask(resend(engine=E2), timeout_s=0.1, on_answer=told.append)
        await until(lambda: len(told) == 3)
        never.set()
        await client.request(resend(8), timeout_s=5)

        assert Resent(engine=E1, stream=StreamNo(7), gone=True) == told[0]
        assert [NoResponder, RequestTimeout] == [type(error) for error in told[1:]]

    world.run(scenario)


def test_a_fault_of_who_asked_does_not_end_the_answers_of_others(world: World):
    async def scenario(world: World) -> None:
        client, server = await world.bus(), await world.bus()
        await server.serve(Resend, answer, engine=E1)

        def raises(_: Message | BusError) -> None:
            raise RuntimeError("at fault")

        client.ask(resend(1), timeout_s=5, on_answer=raises)

        reply = await client.request(resend(2), timeout_s=5)
        assert Resent(engine=E1, stream=StreamNo(2), gone=True) == reply
        assert 1 == client.counts.handler_errors

    world.run(scenario)
