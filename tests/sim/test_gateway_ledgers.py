"""The entries that a gateway leaves of requests at real engine services: how they ended, and where their time went."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from typing_extensions import override

from services.engine.adapters.fake import FakeEngine
from services.engine.ports import Limits, Piece, Sink
from shared.codec import decode
from shared.messages import (
    STAGES,
    UNKNOWN_SERVICE,
    DeltaExtra,
    Ledger,
    Outcome,
    Priority,
    Spent,
    Submit,
)
from tests.support.gateway_world import SERVICE, GatewayWorld, call, play
from tests.support.nats_caller import Asker

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"


class OtherWord(FakeEngine):
    """An engine that says something else about its part than what it measured."""

    def word(self, spent: Spent) -> Spent | None:
        raise NotImplementedError

    @override
    async def start(self, sink: Sink) -> Limits:
        def other(key: str, piece: Piece) -> None:
            extra = piece.extra
            if extra is not None and extra.spent is not None:
                extra = msgspec.structs.replace(extra, spent=self.word(extra.spent))
                piece = msgspec.structs.replace(
                    piece, extra=None if extra == DeltaExtra() else extra
                )
            sink(key, piece)

        return await super().start(other)

    @override
    def spent(self, key: str) -> Spent | None:
        told = super().spent(key)
        return None if told is None else self.word(told)


class Mute(OtherWord):
    """As an older engine, or one whose backend cannot tell."""

    @override
    def word(self, spent: Spent) -> Spent | None:
        return None


class Elsewhen(OtherWord):
    """On a host that was booted a day earlier."""

    @override
    def word(self, spent: Spent) -> Spent | None:
        return msgspec.structs.replace(
            spent, received_at=spent.received_at + 86_400, until=spent.until + 86_400
        )


def share(entry: Ledger, *names: str) -> float:
    """Return the seconds of some stages."""
    return sum(us for stage, us in zip(STAGES, entry.us, strict=True) if stage in names) / 1e6


async def told(world: GatewayWorld, number: int = 1) -> list[Ledger]:
    """Return the entries of the service, in the order of their ends, when so many have come."""
    await world.until(lambda: len(world.ledgers[SERVICE]) >= number)
    world.assert_entries_add_up()
    return world.ledgers[SERVICE]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_an_entry_says_who_asked_what_came_and_where_the_time_went(is_streamed):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        engine = await world.add_engine(step_s=0.01, answer_tokens=50)
        asked = call(
            "x" * 4000,
            n=2,
            max_tokens=50,
            timeout_s=60.0,
            priority=Priority.BATCH,
            stream=is_streamed,
        )

        got = await world.answer(asked, headers={"traceparent": PARENT, "x-request-id": "mine"})

        (entry,) = await told(world)
        assert (Outcome.FINISHED, 200, "") == (entry.outcome, entry.status, entry.code)
        assert ("test", "completion", "t", "mine") == (
            entry.door,
            entry.kind,
            entry.tenant,
            entry.label,
        )
        assert (Priority.BATCH, True, 50) == (
            entry.priority,
            entry.has_own_deadline,
            entry.max_tokens,
        )
        assert entry.is_streamed is is_streamed
        assert (PARENT[3:35], PARENT[36:52], 0) == (
            entry.trace_id.hex(),
            entry.parent_id.hex(),
            entry.trace_flags,
        )
        assert engine.service._engine == entry.engine
        assert got.usage is not None
        assert (got.usage.prompt_tokens, 100) == (entry.prompt_tokens, entry.completion_tokens)
        assert [(0, 50, "length"), (1, 50, "length")] == [
            (one.index, one.tokens, one.finish) for one in entry.choices
        ]
        assert not entry.is_estimated
        assert entry.wall_us / 1e6 == pytest.approx(share(entry, "prefill", "decode"), rel=0.05)
        assert 0.48 < share(entry, "decode") < 0.52
        assert entry.ttft_us / 1e6 == pytest.approx(share(entry, "prefill"), abs=0.02)
        assert 9_000 < entry.max_token_gap_us < 12_000

    play(scenario)


def test_the_wait_at_the_gate_is_admit():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(admission={"over_commit": 1.0})
        await world.add_engine(max_streams=1, step_s=0.01)
        world.start(call(max_tokens=100))

        await world.answer(call(max_tokens=100))

        waits = sorted(share(entry, "admit") for entry in await told(world, 2))
        assert 0 == waits[0]
        assert 0.9 < waits[1] < 1.1

    play(scenario)


def test_clients_that_leave_leave_an_entry_where_they_were():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(admission={"over_commit": 1.0})
        await world.add_engine(max_streams=1, step_s=0.01, prefill_tokens_per_s=1000.0)
        runnings = [world.start(call("x" * 4000, max_tokens=500))[1] for _ in range(2)]
        await asyncio.sleep(3.0)

        for running in runnings:
            world.gateway.calls.leave(running)

        entries = await told(world, 2)
        assert [(Outcome.LEFT, 499)] * 2 == [(entry.outcome, entry.status) for entry in entries]
        assert [3_000_000] * 2 == [entry.wall_us for entry in entries]
        by_wait = sorted(entries, key=lambda entry: share(entry, "admit"))
        assert 3.0 == pytest.approx(share(by_wait[0], "prefill", "decode"), abs=0.1)
        assert 3.0 == share(by_wait[1], "admit")
        assert ("", True) == (by_wait[1].engine, by_wait[0].is_estimated)

    play(scenario)


@pytest.mark.parametrize(
    ("asked", "outcome", "status", "code"),
    [
        ({"model": "other"}, Outcome.INVALID, 404, "model_not_found"),
        ({"text": "x" * 4000}, Outcome.INVALID, 400, "context_length_exceeded"),
        ({"max_tokens": 60, "timeout_s": 0.3}, Outcome.EXPIRED, 504, "request_timeout"),
    ],
)
def test_requests_without_an_answer_have_an_entry_too(asked, outcome, status, code):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(max_model_len=512, step_s=0.01)
        fields = {"text": "hello"} | asked

        await world.answer(call(**fields))

        service = UNKNOWN_SERVICE if "model" in asked else SERVICE
        await world.until(lambda: world.ledgers[service])
        (entry,) = world.ledgers[service]
        assert (outcome, status, code) == (entry.outcome, entry.status, entry.code)
        await world.assert_nothing_is_left()

    play(scenario)


def test_what_no_engine_takes_is_refused():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()

        await world.answer(call())

        await world.until(lambda: world.ledgers[UNKNOWN_SERVICE])
        (entry,) = world.ledgers[UNKNOWN_SERVICE]
        assert (Outcome.REFUSED, 503, "no_engine") == (entry.outcome, entry.status, entry.code)

    play(scenario)


def test_a_stopped_gateway_tells_of_what_it_broke_off():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(drain_s=1.0)
        await world.add_engine(step_s=0.01)
        recorder, _ = world.start(call(max_tokens=4000))
        await recorder.first.wait()

        world.drain_gateway()

        (entry,) = await told(world)
        assert (Outcome.STOPPED, 503, "stopping") == (entry.outcome, entry.status, entry.code)

    play(scenario)


@pytest.mark.parametrize(("temperature", "way"), [(0.0, "resume"), (1.0, "replay")])
def test_of_an_answer_that_another_engine_went_on_with_both_are_told(temperature, way):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        dying = await world.add_engine(step_s=0.01)
        recorder, _ = world.start(
            call(max_tokens=300, temperature=temperature, has_own_seed=temperature > 0)
        )
        await recorder.first.wait()
        await asyncio.sleep(1.0)
        other = await world.add_engine(step_s=0.01)

        dying.kill()
        await recorder.over.wait()

        (entry,) = await told(world)
        assert (Outcome.FINISHED, 300) == (entry.outcome, entry.completion_tokens)
        assert other.service._engine == entry.engine
        (attempt,) = entry.attempts
        assert (dying.service._engine, "is gone", way) == (attempt.engine, attempt.why, attempt.way)
        assert 2.5 < attempt.us / 1e6 < 3.5
        assert entry.is_estimated
        assert 1.5 < share(entry, "route") < 2.5
        assert entry.wall_us / 1e6 == pytest.approx(
            share(entry, "route", "prefill", "decode"), abs=0.2
        )
        assert 1.5 < entry.max_token_gap_us / 1e6

    play(scenario)


def test_an_engine_that_cannot_tell_is_seen_from_outside():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(make=Mute, step_s=0.01, prefill_tokens_per_s=1000.0)

        await world.answer(call("x" * 2000, max_tokens=100))

        (entry,) = await told(world)
        assert entry.is_estimated
        assert entry.ttft_us / 1e6 == pytest.approx(share(entry, "prefill"), abs=0.001)
        assert 0.99 == pytest.approx(share(entry, "decode"), abs=0.02)
        assert 100 == entry.choices[0].tokens

    play(scenario)


def test_an_engine_of_another_boot_is_believed_about_durations_only():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(make=Elsewhen, boot="another", step_s=0.01, answer_tokens=100)

        await world.answer(call(max_tokens=100))
        await world.answer(call(max_tokens=100))

        for entry in await told(world, 2):
            assert not entry.is_estimated
            assert entry.wall_us / 1e6 == pytest.approx(
                share(entry, "prefill", "decode"), abs=0.001
            )

    play(scenario)


def test_of_several_prompts_the_last_one_tells():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(step_s=0.01)

        got = await world.answer(call(prompts=3, n=2, max_tokens=20))

        (entry,) = await told(world)
        assert list(range(6)) == [choice.index for choice in entry.choices]
        assert 120 == entry.completion_tokens
        assert got.usage is not None
        assert got.usage.prompt_tokens == entry.prompt_tokens == entry.prefill_tokens

    play(scenario)


def test_entries_wait_while_the_bus_is_away():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(step_s=0.01)
        world.buses[0].cut()
        for _ in range(3):
            await world.answer(call(model="other"))
        await asyncio.sleep(0.5)
        assert (3, 0) == (world.gateway.ledgers.waiting, len(world.ledgers[UNKNOWN_SERVICE]))

        world.buses[0].heal()

        await world.until(lambda: len(world.ledgers[UNKNOWN_SERVICE]) == 3)
        assert 0 == world.gateway.ledgers.waiting

    play(scenario)


def test_the_engine_gets_the_span_of_the_request_and_the_callers_state():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(step_s=0.01)
        seen: list[Submit] = []
        spy = await Asker.join(world)
        await spy._wire.listen(
            "hr.engine.*.submit", lambda _s, payload, _r, _h: seen.append(decode(Submit, payload))
        )

        await world.answer(call(), headers={"traceparent": PARENT, "tracestate": "a=1, b=2"})
        await world.answer(call())

        first, second = await told(world, 2)
        assert {
            "traceparent": f"00-{PARENT[3:35]}-{first.span_id.hex()}-00",
            "tracestate": "a=1,b=2",
        } == seen[0].trace
        assert {"traceparent": f"00-{second.trace_id.hex()}-{second.span_id.hex()}-03"} == seen[
            1
        ].trace

    play(scenario)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_over_nats_the_span_comes_first_and_the_timing_last(is_streamed):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(step_s=0.01)
        asker = await Asker.join(world)
        body = {"prompt": "hello", "max_tokens": 20, "ignore_eos": True, "stream": is_streamed}

        answer = await asker.ask(body, verb="completions", hr_timing="1")
        replies = await (answer.whole() if is_streamed else answer.several(1))

        (entry,) = await told(world)
        timing = msgspec.json.decode(replies[-1].headers["Hr-Timing"])
        assert entry.request == timing["request"] == replies[0].headers["Hr-Request-Id"]
        assert (
            f"00-{entry.trace_id.hex()}-{entry.span_id.hex()}-03"
            == replies[0].headers["traceparent"]
        )
        assert list(STAGES) == list(timing["stages_ms"])
        assert timing["wall_ms"] == pytest.approx(sum(timing["stages_ms"].values()))
        assert timing["wall_ms"] == pytest.approx(entry.wall_us / 1000, abs=1)

    play(scenario)


@pytest.mark.parametrize(
    ("body", "headers", "status"), [(b"{", {}, 400), (b"{}", {"hr_priority": "now"}, 400)]
)
def test_over_nats_a_request_that_is_no_call_has_an_entry_too(body, headers, status):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(step_s=0.01)
        asker = await Asker.join(world)

        asked = await asker.ask(body, verb="completions", hr_timing="1", **headers)
        reply = await asked.one()

        (entry,) = await told(world)
        timing = msgspec.json.decode(reply.headers["Hr-Timing"])
        assert timing["wall_ms"] == pytest.approx(sum(timing["stages_ms"].values()))
        assert (Outcome.INVALID, status, "nats") == (entry.outcome, entry.status, entry.door)
        assert entry.request == reply.headers["Hr-Request-Id"]
        assert entry.span_id.hex() in reply.headers["traceparent"]
        await world.assert_nothing_is_left()

    play(scenario)
