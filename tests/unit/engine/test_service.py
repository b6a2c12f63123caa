"""The shell on a memory bus in virtual time: what comes of a submit, in which messages, and which are refused."""

from __future__ import annotations

import asyncio

import pytest

from services.engine.adapters.fake import FakeEngine
from services.engine.settings import FakeSettings
from shared.membus import Faults, set_faults
from shared.messages import (
    Accepted,
    EngineState,
    Finish,
    RefuseReason,
    Submit,
)
from tests.support.engine_shell import FAST, ends, engine_shell, virtual

SLOW_SUBMIT = FakeSettings(step_s=0.01, prefill_tokens_per_s=1e6, render_s=1.0)


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
