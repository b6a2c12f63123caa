"""The shell on a memory bus in virtual time: every message, every way a stream can end."""

from __future__ import annotations

import asyncio
from functools import wraps

import pytest

from services.engine.adapters.fake import FakeEngine
from services.engine.ports import EngineFailedError
from services.engine.settings import FakeSettings, RingSettings
from shared.ids import StreamNo
from shared.membus import Faults, set_faults
from shared.messages import (
    Accepted,
    EngineState,
    Finish,
    Refused,
    RefuseReason,
    Submit,
    TokenBatch,
)
from shared.vloop import run_virtual
from tests.support.engine_shell import FAST, ends, engine_shell

SLOW_SUBMIT = FakeSettings(step_s=0.01, prefill_tokens_per_s=1e6, render_s=1.0)


def virtual(scenario):
    """Run a coroutine test in virtual time."""

    @wraps(scenario)
    def test(*args, **kwargs):
        run_virtual(scenario(*args, **kwargs))

    return test


@virtual
async def test_an_answer_comes_numbered_with_its_usage_last():
    async with engine_shell() as shell:
        gateway = shell.gateway

        answer = await gateway.ask(gateway.submit())
        await asyncio.sleep(1)
        deltas = gateway.deltas(answer.stream)

        assert answer == Accepted(engine="e1", stream=answer.stream, prompt_tokens=2)
        assert [delta.seq for delta in deltas] == list(range(10))
        assert [ends(delta) for delta in deltas] == [False] * 9 + [True]
        assert deltas[-1].finish is Finish.LENGTH
        assert deltas[-1].extra.usage.completion_tokens == 10
        assert deltas[-1].extra.usage.prompt_tokens == 2
        assert shell.service.heartbeat().outstanding_tokens == 0


@virtual
async def test_choices_share_one_numbering_and_one_usage():
    async with engine_shell() as shell:
        stream = await shell.gateway.accepted(n=3)
        await asyncio.sleep(1)
        deltas = shell.gateway.deltas(stream)

        assert [delta.seq for delta in deltas] == list(range(30))
        assert sum(ends(delta) for delta in deltas) == 1
        assert deltas[-1].extra.usage.completion_tokens == 30
        assert [0, 1, 2] == sorted(delta.choice for delta in deltas if delta.finish)


@virtual
async def test_one_message_a_step_and_gateway():
    async with engine_shell(gateways=2) as shell:
        for gateway in shell.gateways:
            await asyncio.gather(*(gateway.accepted(max_tokens=20) for _ in range(8)))
        await asyncio.sleep(1)

        for gateway in shell.gateways:
            assert sum(len(batch.deltas) for batch in gateway.batches) == 160
            assert 20 <= len(gateway.batches) <= 24
            assert {batch.gateway for batch in gateway.batches} == {gateway.name}


@virtual
async def test_a_message_stays_below_its_bound():
    async with engine_shell(batch_bytes=200) as shell:
        await asyncio.gather(*(shell.gateway.accepted() for _ in range(32)))
        await asyncio.sleep(1)

        assert sum(len(batch.deltas) for batch in shell.gateway.batches) == 320
        assert max(len(batch.deltas) for batch in shell.gateway.batches) <= 16


@virtual
async def test_outstanding_work_goes_down_with_every_token():
    async with engine_shell(fake=FakeSettings(step_s=0.1, prefill_tokens_per_s=1e9)) as shell:
        await shell.gateway.accepted(max_tokens=10)
        seen = [shell.service.heartbeat().outstanding_tokens]
        for _ in range(11):
            await asyncio.sleep(0.1)
            seen.append(shell.service.heartbeat().outstanding_tokens)

        assert seen[0] == 12
        assert set(range(10)) <= set(seen)


# --- answers to submits


@virtual
async def test_a_starting_engine_is_not_ready():
    async with engine_shell(fake=FakeSettings(start_s=5.0), wait_ready=False) as shell:
        await asyncio.sleep(1)
        answer = await shell.gateway.ask(shell.gateway.submit())

        assert answer.reason is RefuseReason.NOT_READY
        assert {beat.state for beat in shell.beats} == {EngineState.STARTING}
        await asyncio.sleep(5)
        assert EngineState.READY is shell.last_beat.state


@virtual
async def test_the_backends_refusal_comes_with_its_numbers():
    async with engine_shell() as shell:
        answer = await shell.gateway.ask(shell.gateway.submit(max_tokens=9000))

        assert (RefuseReason.TOO_LONG, "max_tokens") == (answer.reason, answer.param)
        assert "maximum context length is 8192" in answer.message
        assert shell.service.heartbeat().outstanding_tokens == 0


@virtual
async def test_the_same_submit_twice_runs_once_and_is_answered_alike():
    async with engine_shell() as shell:
        set_faults(shell.hub, Submit, Faults(duplicate_ratio=1.0))
        gateway = shell.gateway
        submit = gateway.submit()

        answers = [await gateway.ask(submit), await gateway.ask(submit)]
        await asyncio.sleep(1)
        answers.append(await gateway.ask(submit))

        assert answers == [answers[0]] * 3
        assert len(gateway.deltas(submit.stream)) == 10
        assert shell.service.counts.accepted == 1


@virtual
async def test_a_submit_that_comes_again_while_it_is_asked_about_gets_the_same_answer():
    async with engine_shell(fake=SLOW_SUBMIT) as shell:
        submit = shell.gateway.submit()

        answers = await asyncio.gather(shell.gateway.ask(submit), shell.gateway.ask(submit))

        assert answers[0] == answers[1]
        assert shell.service.counts.accepted == 1


@virtual
async def test_too_many_waiting_choices_are_refused_as_overloaded():
    fake = FakeSettings(step_s=0.1, prefill_tokens_per_s=1e9, max_streams=2)
    async with engine_shell(fake=fake, max_waiting=3) as shell:
        for _ in range(2):
            await shell.gateway.accepted(max_tokens=100)
        await asyncio.sleep(0.3)
        for _ in range(3):
            await shell.gateway.accepted()

        answer = await shell.gateway.ask(shell.gateway.submit())

        assert answer.reason is RefuseReason.OVERLOADED
        assert answer.retry_after_s >= 1
        assert shell.service.heartbeat().waiting == 3


class BrokenBackend(FakeEngine):
    """Raises what no port allows."""

    async def submit(self, job):
        raise ValueError("a bug")


@virtual
async def test_a_bug_of_the_backend_costs_one_submit_and_nothing_stays():
    async with engine_shell(backend=BrokenBackend(FAST)) as shell:
        with pytest.raises(Exception, match="a bug"):
            await shell.gateway.ask(shell.gateway.submit())

        assert shell.service.heartbeat().outstanding_tokens == 0
        assert shell.service.heartbeat().waiting == 0


# --- cancels


@virtual
async def test_a_cancel_stops_tokens_and_frees_the_work():
    async with engine_shell() as shell:
        stream = await shell.gateway.accepted(max_tokens=1000)
        await asyncio.sleep(0.5)
        shell.gateway.cancel(stream)
        await asyncio.sleep(0.02)
        seen = len(shell.gateway.deltas(stream))
        await asyncio.sleep(1)

        assert 0 < seen == len(shell.gateway.deltas(stream)) < 100
        beat = shell.service.heartbeat()
        assert (0, 0, 0) == (beat.running, beat.waiting, beat.outstanding_tokens)
        assert (await shell.gateway.resend(stream)).gone


@virtual
async def test_a_cancel_that_overtakes_its_submit_counts():
    async with engine_shell() as shell:
        submit = shell.gateway.submit()
        shell.gateway.cancel(submit.stream)
        await asyncio.sleep(0.1)

        answer = await shell.gateway.ask(submit)

        assert isinstance(answer, Refused)
        assert shell.service.heartbeat().running == 0
        await asyncio.sleep(1)
        assert shell.gateway.batches == []


@virtual
async def test_a_cancel_while_the_backend_is_asked_ends_the_submit():
    async with engine_shell(fake=SLOW_SUBMIT) as shell:
        submit = shell.gateway.submit()
        asking = shell.runtime.group.create_task(shell.gateway.ask(submit))
        await asyncio.sleep(0.5)
        shell.gateway.cancel(submit.stream)

        answer = await asking

        assert isinstance(answer, Refused)
        assert asyncio.get_running_loop().time() < 0.7
        await asyncio.sleep(3)
        assert shell.gateway.batches == []
        assert shell.service.heartbeat().outstanding_tokens == 0


@virtual
async def test_cancels_of_unknown_and_finished_streams_change_nothing():
    async with engine_shell() as shell:
        stream = await shell.gateway.accepted()
        await asyncio.sleep(1)
        for number in (stream, stream, StreamNo(99)):
            shell.gateway.cancel(number)
        await asyncio.sleep(0.1)

        assert await shell.gateway.accepted()


# --- time


@virtual
async def test_the_deadline_ends_a_stream_with_its_usage():
    async with engine_shell() as shell:
        stream = await shell.gateway.accepted(max_tokens=5000, deadline_s=1.0, n=2)
        await asyncio.sleep(2)
        *_, first, last = shell.gateway.deltas(stream)

        assert (Finish.TIMEOUT, Finish.TIMEOUT) == (first.finish, last.finish)
        assert (0, 1) == (first.choice, last.choice)
        assert 150 < last.extra.usage.completion_tokens < 250
        assert shell.service.heartbeat().running == 0


@virtual
async def test_a_submit_that_takes_longer_than_its_deadline_is_refused():
    fake = FakeSettings(render_s=60.0)
    async with engine_shell(fake=fake) as shell:
        answer = await shell.gateway.ask(shell.gateway.submit(deadline_s=1.0))

        assert answer.reason is RefuseReason.OVERLOADED
        assert asyncio.get_running_loop().time() < 1.3


@virtual
async def test_work_of_a_silent_gateway_is_dropped():
    async with engine_shell(gateways=2) as shell:
        for gateway in shell.gateways:
            await gateway.accepted(max_tokens=5000)
        await asyncio.sleep(1)
        shell.gateways[1].is_beating = False
        await asyncio.sleep(1.4)
        assert shell.service.heartbeat().running == 2
        await asyncio.sleep(1.2)

        assert shell.service.heartbeat().running == 1
        assert shell.gateways[0].name in repr(list(shell.service._streams.live))


@virtual
async def test_a_gateway_that_never_beat_gets_its_time_from_the_submit_on():
    async with engine_shell() as shell:
        shell.gateway.is_beating = False
        await asyncio.sleep(10)
        await shell.gateway.accepted(max_tokens=5000)
        await asyncio.sleep(1.5)
        assert shell.service.heartbeat().running == 1
        await asyncio.sleep(1)

        assert shell.service.heartbeat().running == 0


@virtual
async def test_a_lost_bus_costs_no_stream():
    async with engine_shell() as shell:
        stream = await shell.gateway.accepted(max_tokens=1000)
        await asyncio.sleep(1)
        shell.bus.cut()
        await asyncio.sleep(5)
        shell.bus.heal()
        await asyncio.sleep(10)

        assert [delta.seq for delta in shell.gateway.deltas(stream)] == list(range(1000))


# --- resends


@virtual
async def test_lost_deltas_can_be_had_again():
    async with engine_shell() as shell:
        set_faults(shell.hub, TokenBatch, Faults(drop_ratio=0.3))
        gateway = shell.gateway
        stream = await gateway.accepted(max_tokens=100)
        await asyncio.sleep(3)
        came = {delta.seq: delta for delta in gateway.deltas(stream)}

        resent = await gateway.resend(stream, 0)

        assert 0 < len(came) < 100
        assert [delta.seq for delta in resent.deltas] == list(range(100))
        assert all(resent.deltas[seq] == delta for seq, delta in came.items())
        assert (await gateway.resend(stream, 98)).deltas == resent.deltas[98:]
        assert (await gateway.resend(stream, 100)).deltas == []


@virtual
async def test_a_resend_of_a_live_stream_has_what_there_is():
    async with engine_shell() as shell:
        stream = await shell.gateway.accepted(max_tokens=1000)
        await asyncio.sleep(1)

        deltas = (await shell.gateway.resend(stream, 10)).deltas

        assert [delta.seq for delta in deltas] == list(range(10, 10 + len(deltas)))
        assert len(deltas) > 50


@virtual
async def test_finished_streams_are_gone_after_a_while():
    async with engine_shell(ring=RingSettings(finished_s=5.0)) as shell:
        stream = await shell.gateway.accepted()
        await asyncio.sleep(4)
        assert not (await shell.gateway.resend(stream)).gone
        await asyncio.sleep(3)

        assert (await shell.gateway.resend(stream)).gone
        assert shell.service._streams.ring_bytes == 0


@virtual
async def test_one_gateway_cannot_read_the_stream_of_another():
    async with engine_shell(gateways=2) as shell:
        stream = await shell.gateways[0].accepted()
        await asyncio.sleep(1)

        assert (await shell.gateways[1].resend(stream)).gone
        shell.gateways[1].cancel(stream)
        await asyncio.sleep(0.1)
        assert not (await shell.gateways[0].resend(stream)).gone


# --- heartbeats


@virtual
async def test_heartbeats_come_twice_a_second_and_count_up():
    async with engine_shell() as shell:
        await asyncio.sleep(10)
        beats = [beat.beat for beat in shell.beats]

        assert 19 <= len(beats) <= 23
        assert beats == list(range(beats[0], beats[0] + len(beats)))
        assert (8192, 128, 16384) == (
            shell.last_beat.max_model_len,
            shell.last_beat.max_streams,
            shell.last_beat.total_blocks,
        )


@virtual
async def test_a_hung_backend_shows_in_the_age_of_its_step():
    async with engine_shell() as shell:
        await shell.gateway.accepted(max_tokens=1000)
        await asyncio.sleep(2)
        assert shell.last_beat.step_age_s < 0.1
        assert 80 < shell.last_beat.step
        shell.backend.stall()
        await asyncio.sleep(5)

        assert 4 < shell.last_beat.step_age_s < 6


@virtual
async def test_the_pace_is_about_what_comes():
    async with engine_shell(fake=FakeSettings(step_s=0.1)) as shell:
        for _ in range(4):
            await shell.gateway.accepted(max_tokens=5000)
        await asyncio.sleep(40)

        assert 36 < shell.last_beat.tokens_per_s < 44


# --- the end


@virtual
async def test_a_drain_refuses_the_new_and_finishes_the_old():
    async with engine_shell(drain_s=30.0) as shell:
        stream = await shell.gateway.accepted(max_tokens=200)
        await asyncio.sleep(0.5)
        shell.runtime.stop.set()
        await asyncio.sleep(0.1)
        answer = await shell.gateway.ask(shell.gateway.submit())

        assert answer.reason is RefuseReason.DRAINING
        assert EngineState.DRAINING is shell.last_beat.state
        assert await shell.run is None
        assert asyncio.get_running_loop().time() < 3
        await asyncio.sleep(0.1)
        assert len(shell.gateway.deltas(stream)) == 200


@virtual
async def test_what_outlasts_the_drain_is_handed_back():
    async with engine_shell(drain_s=2.0) as shell:
        stream = await shell.gateway.accepted(max_tokens=5000)
        shell.runtime.stop.set()

        assert await shell.run is None
        await asyncio.sleep(0.1)
        last = shell.gateway.deltas(stream)[-1]
        assert last.finish is Finish.ERROR
        assert last.extra.error.retryable
        assert 2 <= asyncio.get_running_loop().time() < 2.3


@virtual
async def test_a_dead_backend_hands_everything_back_and_ends_the_process():
    async with engine_shell() as shell:
        streams = [await shell.gateway.accepted(max_tokens=5000) for _ in range(3)]
        await asyncio.sleep(0.5)
        shell.backend.die("the core crashed")

        failure = await shell.run
        await asyncio.sleep(0.1)

        assert isinstance(failure, EngineFailedError)
        for stream in streams:
            error = shell.gateway.deltas(stream)[-1].extra.error
            assert error.retryable
            assert "the core crashed" in error.message
        assert EngineState.FAILED is shell.last_beat.state
        assert shell.last_beat.reason == "the core crashed"
        assert shell.last_beat.outstanding_tokens == 0


@virtual
async def test_a_backend_that_dies_in_the_drain_is_a_failure():
    async with engine_shell() as shell:
        await shell.gateway.accepted(max_tokens=5000)
        shell.runtime.stop.set()
        await asyncio.sleep(1)
        shell.backend.die("the core crashed")

        assert isinstance(await shell.run, EngineFailedError)


@virtual
async def test_a_death_answers_the_submit_under_way():
    async with engine_shell(fake=FakeSettings(render_s=60.0)) as shell:
        asking = shell.runtime.group.create_task(shell.gateway.ask(shell.gateway.submit()))
        await asyncio.sleep(0.5)
        shell.backend.die("the core crashed")

        answer = await asking

        assert answer.reason is RefuseReason.NOT_READY
        assert isinstance(await shell.run, EngineFailedError)


@virtual
async def test_a_stop_while_loading_ends_at_once():
    async with engine_shell(fake=FakeSettings(start_s=60.0), wait_ready=False) as shell:
        await asyncio.sleep(1)
        shell.runtime.stop.set()

        assert await shell.run is None
        assert asyncio.get_running_loop().time() < 2


class CannotStart(FakeEngine):
    """Has no model."""

    async def start(self, sink):
        raise EngineFailedError("no such folder: set vllm.model")


@virtual
async def test_a_backend_that_cannot_start_says_so_on_the_bus():
    async with engine_shell(backend=CannotStart(FAST), wait_ready=False) as shell:
        failure = await shell.run
        await asyncio.sleep(0.1)

        assert isinstance(failure, EngineFailedError)
        assert EngineState.FAILED is shell.last_beat.state
        assert "vllm.model" in shell.last_beat.reason
