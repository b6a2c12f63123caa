"""The NATS door on the memory bus: answers, streams, errors, cancels, callers that are gone, discovery."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from shared.keys import KeyFile, key_line
from shared.membus import MemoryBus
from tests.support.gateway_world import GatewayWorld, play
from tests.support.nats_caller import Asker

CHAT = {
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 8,
    "seed": 1,
    "ignore_eos": True,
}
LONG = CHAT | {"max_tokens": 4000}


def test_a_request_gets_one_answer():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine()
        asker = await Asker.join(world)

        reply = await (await asker.ask(CHAT)).one()

        assert "chat.completion" == reply.json["object"]
        assert 8 == reply.json["usage"]["completion_tokens"]
        assert reply.json["id"] == reply.headers["Hr-Request-Id"]
        await world.assert_nothing_is_left()

    play(scenario)


def test_a_stream_is_bare_chunks_and_an_empty_end():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine()
        asker = await Asker.join(world)

        *chunks, end = await (await asker.ask(CHAT | {"stream": True})).whole()

        assert {"chat.completion.chunk"} == {chunk.json["object"] for chunk in chunks}
        assert "assistant" == chunks[0].json["choices"][0]["delta"]["role"]
        assert "length" == chunks[-1].json["choices"][0]["finish_reason"]
        assert chunks[0].json["id"] == chunks[0].headers["Hr-Request-Id"]
        assert (b"", "1") == (end.payload, end.headers["Hr-End"])
        await world.assert_nothing_is_left()

    play(scenario)


def test_completions_and_models_have_verbs_of_their_own():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine()
        asker = await Asker.join(world)

        text = await (await asker.ask({"prompt": "a", "max_tokens": 3}, verb="completions")).one()
        models = await (await asker.ask(b"", verb="models")).one()

        assert "text_completion" == text.json["object"]
        assert ["m"] == [entry["id"] for entry in models.json["data"]]

    play(scenario)


@pytest.mark.parametrize(
    ("body", "options", "status", "code"),
    [
        (b"{", {}, "400", "invalid_json"),
        (b"[1]", {}, "400", None),
        ({"messages": [], "temperature": 9}, {}, "400", None),
        (CHAT | {"model": "other"}, {}, "400", None),
        (CHAT, {"service": "other"}, "404", "model_not_found"),
        (CHAT, {"hr_timeout": "-1"}, "400", None),
        (CHAT, {"hr_priority": "royal"}, "400", None),
    ],
)
@pytest.mark.parametrize("is_streamed", [True, False])
def test_errors_are_openai_objects_with_the_headers_of_nats_services(
    body, options, status, code, is_streamed
):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine()
        asker = await Asker.join(world)
        asked = body | {"stream": is_streamed} if isinstance(body, dict) else body

        (reply,) = await (await asker.ask(asked, **options)).whole()

        assert (status, "error") == (
            reply.headers["Nats-Service-Error-Code"],
            reply.headers["Hr-End"],
        )
        assert reply.headers["Nats-Service-Error"]
        assert code == reply.json["error"]["code"]
        await world.assert_nothing_is_left()

    play(scenario)


def test_without_a_gateway_the_server_answers():
    async def scenario(world: GatewayWorld) -> None:
        asker = await Asker.join(world)

        assert "503" == (await (await asker.ask(CHAT)).one()).headers["Status"]

    play(scenario)


def test_a_broken_stream_ends_with_an_error():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        engine = await world.add_engine(step_s=0.01)
        asker = await Asker.join(world)
        answer = await asker.ask(LONG | {"stream": True})
        await answer.several(5)

        engine.kill()
        end = (await answer.whole())[-1]

        assert ("error", "503") == (end.headers["Hr-End"], end.headers["Nats-Service-Error-Code"])
        await world.assert_nothing_is_left()

    play(scenario)


def test_the_deadline_of_the_header_holds():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(step_s=0.01)
        asker = await Asker.join(world)

        reply = await (await asker.ask(LONG, hr_timeout="2")).one()

        assert "504" == reply.headers["Nats-Service-Error-Code"]
        assert 2.0 <= world.loop.time() < 4.0
        await world.assert_nothing_is_left()

    play(scenario)


@pytest.mark.parametrize(("by", "is_streamed"), [("id", True), ("inbox", True), ("inbox", False)])
def test_who_knows_the_request_may_cancel_it(is_streamed, by):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_gateway()
        engine = await world.add_engine(step_s=0.01)
        asker = await Asker.join(world)
        answer = await asker.ask(LONG | {"stream": is_streamed})
        await asyncio.sleep(0.3)
        name = answer.inbox
        if by == "id":
            name = answer.replies[0].headers["Hr-Request-Id"]
        assert 1 == engine.live

        confirmed = await (await asker.cancel(name)).one()
        end = (await answer.whole())[-1]

        assert {"cancelled": True} == confirmed.json
        assert "499" == end.headers["Nats-Service-Error-Code"]
        assert 0 == engine.live
        await world.assert_nothing_is_left()

    play(scenario)


def test_strangers_cannot_cancel(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"{key_line('alice', 'ka')}\n{key_line('bob', 'kb')}\n")

    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(keys=KeyFile(path))
        engine = await world.add_engine(step_s=0.01)
        asker = await Asker.join(world)
        answer = await asker.ask(LONG, authorization="Bearer ka", hr_request_id="mine")
        await asyncio.sleep(0.2)

        for name, key in (("mine", "kb"), ("mine", "wrong"), ("", "kb"), ("tenant alice", "kb")):
            await asker.cancel(name, authorization=f"Bearer {key}")
        await asyncio.sleep(0.2)
        assert 1 == engine.live
        await asker.cancel("mine", authorization="Bearer ka")
        end = (await answer.whole())[-1]

        assert "499" == end.headers["Nats-Service-Error-Code"]
        await world.assert_nothing_is_left()

    play(scenario)


def test_an_anonymous_callers_own_id_is_no_secret_and_cancels_nothing():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        engine = await world.add_engine(step_s=0.01)
        asker = await Asker.join(world)
        answer = await asker.ask(LONG, hr_request_id="one")
        await asyncio.sleep(0.2)

        await asker.cancel("one")
        await asyncio.sleep(0.2)

        assert 1 == engine.live
        await asker.cancel(answer.inbox)
        await answer.whole()

    play(scenario)


def test_without_a_key_nobody_is_let_in(tmp_path):
    path = tmp_path / "keys"
    path.write_text(key_line("alice", "ka"))

    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(keys=KeyFile(path))
        await world.add_engine()
        asker = await Asker.join(world)

        refused = [
            await (await asker.ask(CHAT)).one(),
            await (await asker.ask(CHAT, authorization="Bearer no")).one(),
            await (await asker.ask(b"", verb="models")).one(),
        ]
        taken = await (await asker.ask(CHAT, authorization="Bearer ka")).one()

        assert ["401"] * 3 == [reply.headers["Nats-Service-Error-Code"] for reply in refused]
        assert "chat.completion" == taken.json["object"]

    play(scenario)


def test_a_caller_whose_inbox_is_gone_costs_no_more_tokens():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        engine = await world.add_engine(step_s=0.01)
        asker = await Asker.join(world)
        answer = await asker.ask(LONG | {"stream": True})
        await answer.several(3)

        await answer.interest.close()
        gone_at = world.loop.time()
        await world.until(lambda: not engine.live)

        assert world.loop.time() - gone_at < 1.5
        await world.assert_nothing_is_left()

    play(scenario)


def test_a_caller_that_listens_is_probed_and_not_disturbed():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(step_s=0.01)
        asker = await Asker.join(world)
        answer = await asker.ask(CHAT | {"stream": True, "max_tokens": 500})

        *chunks, end = await answer.whole()

        probes = sum(bool(chunk.reply) for chunk in chunks)
        assert 3 <= probes <= 8
        assert all(chunk.payload for chunk in chunks)
        assert "1" == end.headers["Hr-End"]

    play(scenario)


@pytest.mark.parametrize("reply", ["hr.engine.e1.cancel", "$JS.API.STREAM.DELETE.x", ""])
def test_nobody_has_the_gateway_write_where_it_must_not(reply):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine()
        bus = await MemoryBus.join(world.hub, group=world.group, name="client")
        seen: list[bytes] = []
        if reply:
            await bus.wire.listen(reply, lambda _, payload, *__: seen.append(payload))

        bus.wire.send("hr.api.m.chat", msgspec.json.encode(CHAT), reply=reply)
        await asyncio.sleep(1.0)

        assert [] == seen
        assert 0 == world.gateway.table._last_no

    play(scenario)


def test_an_answer_too_large_for_a_message_says_what_to_do():
    async def scenario(world: GatewayWorld) -> None:
        world.hub.max_payload = 2000
        await world.add_gateway()
        await world.add_engine(step_s=0.001)
        asker = await Asker.join(world)

        reply = await (await asker.ask(CHAT | {"max_tokens": 1000})).one()

        assert "answer_too_large" == reply.json["error"]["code"]
        await world.assert_nothing_is_left()

    play(scenario)


def test_an_answer_too_large_for_a_message_is_not_generated_to_its_end():
    async def scenario(world: GatewayWorld) -> None:
        world.hub.max_payload = 2000
        await world.add_gateway()
        engine = await world.add_engine(step_s=0.01)
        asker = await Asker.join(world)
        began = world.loop.time()

        reply = await (await asker.ask(CHAT | {"max_tokens": 5000})).one()

        assert "answer_too_large" == reply.json["error"]["code"]
        assert world.loop.time() - began < 25
        await world.until(lambda: not engine.live, timeout_s=1.0)
        await world.assert_nothing_is_left()

    play(scenario)


def test_requests_are_shared_by_gateways_and_a_draining_one_takes_none():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_gateway()
        await world.add_engine(step_s=0.001)
        asker = await Asker.join(world)

        answers = [await asker.ask(CHAT) for _ in range(30)]
        for answer in answers:
            await answer.one()
        shares = [gateway.table._last_no for gateway in world.gateways]
        world.drain_gateway(0)
        await asyncio.sleep(0.1)
        later = [await asker.ask(CHAT) for _ in range(10)]
        for answer in later:
            assert "chat.completion" == (await answer.one()).json["object"]

        assert min(shares) >= 5
        assert [shares[0], shares[1] + 10] == [gateway.table._last_no for gateway in world.gateways]

    play(scenario)


def test_the_gateway_is_found_by_the_services_protocol():
    async def scenario(world: GatewayWorld) -> None:
        gateway = await world.add_gateway()
        await world.add_gateway()
        await world.add_engine()
        asker = await Asker.join(world)
        await (await asker.ask(CHAT)).one()
        await (await asker.ask(b"{")).one()

        pings = await (await asker.discover("$SRV.PING")).several(2)
        infos = await (await asker.discover("$SRV.INFO.headrace")).several(2)
        stats = await (await asker.discover("$SRV.STATS")).several(2)
        own = await (await asker.discover(f"$SRV.PING.headrace.{gateway._gateway}")).one()

        assert {"io.nats.micro.v1.ping_response"} == {ping.json["type"] for ping in pings}
        assert {"hr.api.*.chat", "hr.api.*.completions", "hr.api.*.models"} == {
            endpoint["subject"] for endpoint in infos[0].json["endpoints"]
        }
        chats = [s.json["endpoints"][0] for s in stats]
        assert (2, 1) == (
            sum(chat["num_requests"] for chat in chats),
            sum(chat["num_errors"] for chat in chats),
        )
        assert gateway._gateway == own.json["id"]

    play(scenario)
