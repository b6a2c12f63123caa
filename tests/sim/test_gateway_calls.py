"""Calls through a whole gateway to real engine services: answers, retries, losses, and nothing left behind."""

from __future__ import annotations

import asyncio

import pytest
from typing_extensions import override

from shared.ids import RequestId
from shared.messages import Finish
from tests.support.gateway_world import GatewayWorld, Recorder, call, play


@pytest.mark.parametrize("is_streamed", [True, False])
def test_an_answer_comes_whole_and_leaves_nothing(is_streamed):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine()

        got = await world.answer(call(stream=is_streamed))

        assert got.error is None
        assert got.usage is not None
        assert 16 == got.usage.completion_tokens
        assert {0} == got.finished
        await world.assert_nothing_is_left()

    play(scenario)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_prompts_and_choices_are_numbered_through(is_streamed):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine()
        await world.add_engine()

        got = await world.answer(call(prompts=3, n=2, stream=is_streamed))

        assert set(range(6)) == got.finished == set(got.texts)
        assert got.usage is not None
        assert 6 * 16 == got.usage.completion_tokens
        await world.assert_nothing_is_left()

    play(scenario)


def test_the_streamed_text_is_the_same_as_the_whole():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine()

        streamed = await world.answer(call())
        whole = await world.answer(call(stream=False))

        assert streamed.texts == whole.texts

    play(scenario)


def test_an_unknown_model_is_refused_at_once():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine()

        got = await world.answer(call(model="other"))

        assert got.error is not None
        assert (404, "model_not_found") == (got.error.status, got.error.code)
        await world.assert_nothing_is_left()

    play(scenario)


def test_without_any_engine_the_client_is_told_to_come_back():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()

        got = await world.answer(call())

        assert got.error is not None
        assert (503, "no_engine") == (got.error.status, got.error.code)
        assert got.error.retry_after_s

    play(scenario)


def test_a_prompt_that_can_never_fit_is_the_clients_fault():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(max_model_len=64)

        got = await world.answer(call("x" * 4000))

        assert got.error is not None
        assert (400, "context_length_exceeded") == (got.error.status, got.error.code)
        assert got.request is None
        await world.assert_nothing_is_left()

    play(scenario)


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("at_s", [0.0, 0.0001, 0.02, 0.05, 0.1])
def test_a_client_that_leaves_costs_nothing_more(is_streamed, at_s):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        engine = await world.add_engine(step_s=0.01)
        recorder, running = world.start(call(max_tokens=2000, stream=is_streamed))
        await asyncio.sleep(at_s)

        world.gateway.calls.leave(running)
        await asyncio.sleep(0.03)

        assert 0 == engine.live
        assert not recorder.over.is_set()
        await world.assert_nothing_is_left()

    play(scenario)


def test_a_client_that_leaves_the_queue_is_never_sent_to_an_engine():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(admission={"over_commit": 1.0})
        engine = await world.add_engine(max_streams=1, step_s=0.01)
        first, _ = world.start(call(max_tokens=100))
        _, waiting = world.start(call(max_tokens=100))
        await asyncio.sleep(0.2)
        assert (1, 1) == (engine.live, world.gateway.gates.waiting)

        world.gateway.calls.leave(waiting)
        await first.over.wait()

        assert first.error is None
        await world.assert_nothing_is_left()

    play(scenario)


def test_a_dead_engine_is_replaced_unseen_where_nothing_was_shown():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        dying = await world.add_engine(step_s=0.01, answer_tokens=500)
        recorder, _ = world.start(call(max_tokens=500, stream=False))
        await asyncio.sleep(1.0)
        await world.add_engine(step_s=0.01)

        dying.kill()
        await recorder.over.wait()

        assert recorder.error is None
        assert recorder.usage is not None
        assert 500 == recorder.usage.completion_tokens
        assert {0} == recorder.finished
        await world.assert_nothing_is_left()

    play(scenario)


def test_a_stalled_engine_is_given_up_although_it_sends_heartbeats():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(routing={"hung_after_s": 5.0})
        stalled = await world.add_engine(step_s=0.01)
        recorder, _ = world.start(call(max_tokens=500, stream=False))
        await asyncio.sleep(0.5)
        await world.add_engine(step_s=0.01)

        stalled.backend.stall()
        await recorder.over.wait()

        assert recorder.error is None
        assert 1 == world.gateway.lookout.ready()

    play(scenario)


def test_a_full_engine_sends_the_prompt_to_the_next():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(admission={"over_commit": 50.0})
        await world.add_engine(max_streams=1, max_waiting=1, step_s=0.01)
        await world.add_engine(max_streams=100, step_s=0.01)

        got = await asyncio.gather(*(world.answer(call()) for _ in range(40)))

        assert [None] * 40 == [one.error for one in got]
        await world.assert_nothing_is_left()

    play(scenario)


def test_a_draining_engine_finishes_what_it_has_and_gets_nothing_new():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        draining = await world.add_engine(step_s=0.01)
        recorder, _ = world.start(call(max_tokens=200))
        await recorder.first.wait()
        await world.add_engine(step_s=0.01)

        draining.drain()
        await asyncio.sleep(0.6)
        others = await asyncio.gather(*(world.answer(call()) for _ in range(10)))
        await recorder.over.wait()

        assert [None] * 11 == [one.error for one in (recorder, *others)]
        await world.assert_nothing_is_left()

    play(scenario)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_the_deadline_ends_a_call_wherever_it_is(is_streamed):
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(step_s=0.01)
        began = world.loop.time()

        got = await world.answer(call(max_tokens=4000, stream=is_streamed, timeout_s=3.0))

        assert got.error is not None
        assert (504, "request_timeout") == (got.error.status, got.error.code)
        assert 3.0 <= world.loop.time() - began < 3.2
        await world.assert_nothing_is_left()

    play(scenario)


def test_a_deadline_that_passes_in_the_queue_says_overloaded():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(admission={"over_commit": 1.0})
        await world.add_engine(max_streams=1, step_s=0.01)
        first, _ = world.start(call(max_tokens=1000))

        late = await world.answer(call(timeout_s=1.0))
        await first.over.wait()

        assert late.error is not None
        assert (503, "overloaded") == (late.error.status, late.error.code)
        assert first.error is None
        await world.assert_nothing_is_left()

    play(scenario)


def test_an_engine_that_never_sends_a_first_token_is_given_up():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(call={"first_token_timeout_s": 2.0})
        slow = await world.add_engine(prefill_tokens_per_s=1.0)
        recorder, _ = world.start(call("x" * 400))
        await asyncio.sleep(0.1)
        assert 1 == slow.live
        await world.add_engine(step_s=0.01)
        await recorder.over.wait()

        assert recorder.error is None
        assert 16 == sum(len(delta.token_ids) for _, delta in recorder.deltas)
        await world.assert_nothing_is_left()

    play(scenario)


def test_more_than_the_engines_hold_waits_and_is_served():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(max_streams=4, step_s=0.01)

        got = await asyncio.gather(*(world.answer(call()) for _ in range(100)))

        assert [None] * 100 == [one.error for one in got]
        await world.assert_nothing_is_left()

    play(scenario)


def test_two_gateways_share_the_engines_fairly():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_gateway()
        await world.add_engine(max_streams=4, step_s=0.01)
        await world.until(lambda: all(g.lookout.gateways == 2 for g in world.gateways))
        done_at: dict[int, list[float]] = {0: [], 1: []}

        async def one(gateway: int) -> None:
            got = await world.answer(call(), gateway=gateway)
            assert got.error is None
            done_at[gateway].append(world.loop.time())

        await asyncio.gather(*(one(gateway) for gateway in (0, 1) for _ in range(60)))

        ends = [max(times) for times in done_at.values()]
        assert min(ends) > 0.6 * max(ends)
        await world.assert_nothing_is_left()

    play(scenario)


def test_two_gateways_do_not_hear_each_others_tokens():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_gateway()
        await world.add_engine(step_s=0.01)

        first, second = await asyncio.gather(
            world.answer(call("a"), gateway=0), world.answer(call("b"), gateway=1)
        )

        assert first.error is None
        assert second.error is None
        assert first.texts != second.texts
        assert [0, 0] == [gateway.table.strays for gateway in world.gateways]

    play(scenario)


def test_a_drained_gateway_lets_calls_finish_and_tells_the_rest():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(drain_s=2.0)
        await world.add_engine(step_s=0.01)
        short, _ = world.start(call(max_tokens=100))
        long, _ = world.start(call(max_tokens=4000))
        await short.first.wait()

        world.drain_gateway()
        await long.over.wait()

        assert short.error is None
        assert long.error is not None
        assert (503, "stopping") == (long.error.status, long.error.code)
        await world.assert_nothing_is_left()

    play(scenario)


def test_a_gateway_cut_off_for_a_while_does_not_give_up_its_engines():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(step_s=0.01)
        recorder, _ = world.start(call(max_tokens=300))
        await recorder.first.wait()

        world.buses[0].cut()
        await asyncio.sleep(1.5)
        world.buses[0].heal()
        await recorder.over.wait()

        assert recorder.error is None
        assert 300 == sum(len(delta.token_ids) for _, delta in recorder.deltas)
        assert [Finish.LENGTH] == [d.finish for _, d in recorder.deltas if d.finish is not None]
        await world.assert_nothing_is_left()

    play(scenario)


def test_a_fault_in_one_call_ends_that_call_only():
    class Broken(Recorder):
        @override
        def begin(self, request: RequestId) -> None:
            raise RuntimeError("boom")

    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway()
        await world.add_engine(step_s=0.01)
        good, _ = world.start(call())

        broken = await world.answer(call(), outlet=Broken())
        await good.over.wait()

        assert broken.error is not None
        assert 500 == broken.error.status
        assert good.error is None
        await world.assert_nothing_is_left()

    play(scenario)
