"""Engines are lost under answers: another one goes on, and the client gets each token once, with the right usage."""

from __future__ import annotations

import asyncio
import random

import pytest

from services.gateway import refusals
from services.gateway.call import Call
from services.gateway.continuation import Way
from services.gateway.streams import LossReason
from shared.messages import ChatPrompt, Usage
from tests.support.gateway_world import SERVICE, EngineHandle, GatewayWorld, Recorder, call, play

TOKENS = 100
HANG = {"routing": {"hung_after_s": 2.0}}
SCHEMA = b'{"type":"object","properties":{"a":{"type":"string","minLength":300}},"required":["a"]}'
TOOLS = (
    b'[{"type":"function","function":{"name":"f","parameters":{"type":"object",'
    b'"properties":{"a":{"type":"string","minLength":300}},"required":["a"]}}}]'
)


def chat(**fields) -> Call:
    prompt = ChatPrompt(
        messages_json=b'[{"role":"user","content":"hi"}]',
        tools_json=TOOLS,
        tool_choice="function:f",
    )
    asked = call(kind="chat", max_tokens=400, **fields)
    return Call(
        kind="chat",
        model=SERVICE,
        prompts=(prompt,),
        sampling=asked.sampling,
        stream=asked.stream,
        work_tokens=100,
    )


CALLS = {
    "greedy": call(max_tokens=TOKENS, temperature=0.0),
    "sampled": call(max_tokens=TOKENS, temperature=1.0),
    "seed": call(max_tokens=TOKENS, temperature=1.0, has_own_seed=True),
    "penalties": call(
        max_tokens=TOKENS, temperature=0.0, presence_penalty=0.5, frequency_penalty=0.1
    ),
    "choices": call(max_tokens=TOKENS, temperature=0.0, n=3, ignore_eos=False),
    "prompts": call(max_tokens=TOKENS, temperature=0.0, prompts=3, n=2, ignore_eos=False),
    "logprobs": call(max_tokens=TOKENS, temperature=0.0, logprobs=2),
    "logprobs of a seed": call(max_tokens=TOKENS, logprobs=2, has_own_seed=True),
    "stops": call(max_tokens=TOKENS, temperature=0.0, stop=("nowhere to be found", "nor this")),
    "json": call(max_tokens=400, ignore_eos=False, json_schema=SCHEMA),
    "tool": chat(ignore_eos=False),
}
INEXACT = {"sampled"}
"""Without a seed of the caller's nobody can say what would have come."""


def kill(engine: EngineHandle) -> None:
    engine.kill()


def stall(engine: EngineHandle) -> None:
    engine.backend.stall()


def freeze(engine: EngineHandle) -> None:
    """Vanish for 5 s as by SIGSTOP; then all that was held up arrives."""
    engine.bus.cut()
    asyncio.get_running_loop().call_later(5.0, engine.bus.heal)


LOSSES = {"kill": kill, "stall": stall, "freeze": freeze}


def told(recorder: Recorder) -> dict[int, tuple[object, ...]]:
    """Return all that a client has, by choice: text, tokens, log probabilities, tool arguments, ends."""
    choices: dict[int, tuple[object, ...]] = {}
    for index in {choice for choice, _ in recorder.deltas}:
        deltas = [delta for choice, delta in recorder.deltas if choice == index]
        extras = [delta.extra for delta in deltas if delta.extra is not None]
        choices[index] = (
            "".join(delta.text for delta in deltas),
            [token for delta in deltas for token in delta.token_ids],
            [entry for extra in extras for entry in extra.logprobs or ()],
            "".join(call.arguments for extra in extras for call in extra.tool_calls or ()),
            [call.id for extra in extras for call in extra.tool_calls or () if call.id],
            [delta.finish for delta in deltas if delta.finish is not None],
            [extra.stop_reason for extra in extras if extra.stop_reason is not None],
        )
    return choices


async def healthy(world: GatewayWorld, asked: Call) -> Recorder:
    got = await world.answer(asked)
    assert got.error is None
    assert got.seams == []
    return got


def check_same(got: Recorder, wanted: Recorder) -> None:
    assert got.error is None
    assert told(wanted) == told(got)
    assert wanted.usage == got.usage


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("name", CALLS)
def test_an_answer_goes_on_at_another_engine(name, lose):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(**HANG)
        first = await world.add_engine(step_s=0.01, answer_tokens=TOKENS)
        wanted = await healthy(world, CALLS[name])
        recorder, _ = world.start(CALLS[name])
        await asyncio.sleep(0.35)
        await world.add_engine(step_s=0.01, answer_tokens=TOKENS)

        lose(first)
        await recorder.over.wait()

        check_same(recorder, wanted)
        assert recorder.seams
        assert {(name not in INEXACT)} == {is_exact for _, is_exact in recorder.seams}
        await asyncio.sleep(6.0)
        await world.assert_nothing_is_left()

    play(scenario)


@pytest.mark.parametrize("name", CALLS)
def test_an_answer_in_one_piece_goes_on_too(name):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(**HANG)
        first = await world.add_engine(step_s=0.01, answer_tokens=TOKENS)
        asked = CALLS[name]
        whole = Call(
            **{f: getattr(asked, f) for f in asked.__struct_fields__ if f != "stream"}, stream=False
        )
        wanted = await healthy(world, whole)
        recorder, _ = world.start(whole)
        await asyncio.sleep(0.35)
        await world.add_engine(step_s=0.01, answer_tokens=TOKENS)

        first.kill()
        await recorder.over.wait()

        check_same(recorder, wanted)
        await world.assert_nothing_is_left()

    play(scenario)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("seed", range(3))
def test_several_losses_in_a_row_are_survived(name, seed):
    async def scenario(world: GatewayWorld) -> None:
        rng = random.Random(seed)
        await world.add_gateway(**HANG)
        await world.add_engine(step_s=0.01, answer_tokens=TOKENS)
        wanted = await healthy(world, CALLS[name])
        recorder, running = world.start(CALLS[name])
        for _ in range(3):
            await asyncio.sleep(rng.uniform(0.02, 0.5))
            await world.add_engine(step_s=0.01, answer_tokens=TOKENS)
            parts = [part for part in running.parts if part.engine is not None]
            hit = {part.engine for part in parts} or {None}
            for engine in world.engines:
                if engine.service._engine in hit:
                    engine.kill()
            await world.until(
                lambda hit=hit: (
                    recorder.over.is_set() or not any(part.engine in hit for part in running.parts)
                )
            )
        await recorder.over.wait()

        check_same(recorder, wanted)
        await world.assert_nothing_is_left()

    play(scenario, seed=seed)


def test_a_draining_engine_hands_over_what_it_cannot_finish():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(step_s=0.01)
        asked = call(max_tokens=6000, temperature=0.0)
        wanted = await healthy(world, asked)
        recorder, _ = world.start(asked)
        await recorder.first.wait()
        await world.add_engine(step_s=0.01)

        world.engines[0].drain()
        await recorder.over.wait()

        check_same(recorder, wanted)
        assert [(0, True)] == recorder.seams
        await world.assert_nothing_is_left()

    play(scenario)


def test_a_backend_that_dies_is_noticed_at_once():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(step_s=0.01)
        asked = call(max_tokens=TOKENS, temperature=0.0)
        wanted = await healthy(world, asked)
        recorder, _ = world.start(asked)
        await recorder.first.wait()
        await world.add_engine(step_s=0.01)
        began = world.loop.time()

        world.engines[0].service._fail("killed by a test")
        await recorder.over.wait()

        assert world.loop.time() - began < 0.01 * TOKENS + 0.1
        check_same(recorder, wanted)

    play(scenario)


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_a_loss_is_noticed_within_two_seconds(lose):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        first = await world.add_engine(step_s=0.01)
        recorder, _ = world.start(call(max_tokens=500, temperature=0.0))
        await asyncio.sleep(1.0)
        await world.add_engine(step_s=0.01)
        said, lost_at = len(recorder.deltas), world.loop.time()

        lose(first)
        await world.until(lambda: len(recorder.deltas) > said + 1)

        assert world.loop.time() - lost_at <= 2.1

    play(scenario)


def test_without_another_engine_the_client_gets_an_error_and_not_a_short_answer():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        engine = await world.add_engine(step_s=0.01)
        recorder, _ = world.start(call(max_tokens=500))
        await asyncio.sleep(1.0)
        began = world.loop.time()

        engine.kill()
        await recorder.over.wait()

        assert recorder.error is not None
        assert (503, "engine_failed") == (recorder.error.status, recorder.error.code)
        assert set() == recorder.finished
        assert world.loop.time() - began < 8.0
        await world.assert_nothing_is_left()

    play(scenario)


def test_an_engine_that_comes_soon_is_waited_for():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        engine = await world.add_engine(step_s=0.01)
        asked = call(max_tokens=TOKENS, temperature=0.0)
        wanted = await healthy(world, asked)
        recorder, _ = world.start(asked)
        await asyncio.sleep(0.3)

        engine.kill()
        await asyncio.sleep(4.0)
        assert not recorder.over.is_set()
        said = len(recorder.deltas)
        late = await world.add_engine(step_s=0.01)
        await recorder.over.wait()

        check_same(recorder, wanted)
        # It goes on behind what was said, although for a while nobody was there who could.
        assert late.backend.load().step <= TOKENS - said + 2

    play(scenario)


def test_a_prompt_that_kills_its_engines_ends_with_an_error():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(call={"max_losses": 2})
        await world.add_engine(step_s=0.01)
        recorder, running = world.start(call(max_tokens=4000, temperature=0.0))
        killed = 0
        while not recorder.over.is_set():
            await world.add_engine(step_s=0.01)
            await world.until(
                lambda: recorder.over.is_set() or any(part.has_begun for part in running.parts)
            )
            for engine in world.engines:
                if engine.live and not engine.is_killed:
                    engine.kill()
                    killed += 1
            await asyncio.sleep(2.5)

        assert recorder.error is not None
        assert 503 == recorder.error.status
        assert 3 == killed
        await world.assert_nothing_is_left()

    play(scenario)


def test_a_replay_that_differs_goes_on_as_well_as_it_can():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        engine = await world.add_engine(step_s=0.01)
        recorder, _ = world.start(CALLS["seed"])
        await asyncio.sleep(0.3)
        # Another text for the same seed: it neither repeats what was said, nor takes it for its own.
        await world.add_engine(step_s=0.01, seed=99)

        engine.kill()
        await recorder.over.wait()

        assert recorder.error is not None
        assert (503, "engine_failed") == (recorder.error.status, recorder.error.code)
        await world.assert_nothing_is_left()

    play(scenario)


def test_an_engine_that_failed_is_not_asked_again_because_a_way_was_barred_before():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        first = await world.add_engine(step_s=0.01)
        recorder, running = world.start(CALLS["seed"])
        (part,) = running.parts
        await asyncio.sleep(0.3)
        second = await world.add_engine(step_s=0.01)
        first.kill()
        await world.until(lambda: part.has_begun and part.way is Way.REPLAY)

        world.gateway.calls.set_back(part, refusals.diverged("a token differs"))
        await world.until(lambda: part.has_begun and part.way is Way.RESUME)
        assert 1 == second.live, "who answers otherwise may still go on"
        world.gateway.calls.set_back(part, refusals.stream_lost(LossReason.GONE))
        await asyncio.sleep(1.0)
        assert part.engine is None
        third = await world.add_engine(step_s=0.01)
        await world.until(lambda: third.live)
        await recorder.over.wait()

        assert recorder.error is None
        await world.assert_nothing_is_left()

    play(scenario)


def test_usage_counts_each_token_once():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        engine = await world.add_engine(step_s=0.01)
        recorder, _ = world.start(call(max_tokens=TOKENS, temperature=0.0, n=2))
        await asyncio.sleep(0.3)
        await world.add_engine(step_s=0.01)

        engine.kill()
        await recorder.over.wait()

        assert recorder.usage is not None
        assert Usage(prompt_tokens=2, completion_tokens=2 * TOKENS) == recorder.usage
        tokens = sum(len(delta.token_ids) for _, delta in recorder.deltas)
        assert 2 * TOKENS == tokens

    play(scenario)


def test_what_was_said_is_not_computed_again_where_tokens_are_enough():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        engine = await world.add_engine(step_s=0.01)
        recorder, _ = world.start(call(max_tokens=TOKENS, temperature=0.0))
        await asyncio.sleep(0.8)
        said = len(recorder.deltas)
        second = await world.add_engine(step_s=0.01)

        engine.kill()
        await recorder.over.wait()

        assert said >= TOKENS // 2
        assert second.backend.load().step <= TOKENS - said + 2

    play(scenario)
