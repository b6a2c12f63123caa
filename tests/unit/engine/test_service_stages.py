"""The shell and the stages: every way a stream can end says where its time went, news go out, steps are told on request."""

from __future__ import annotations

import asyncio

from services.engine.settings import FakeSettings
from shared.boot import boot_id
from shared.ids import EngineId, RequestId
from shared.messages import (
    ENGINE_STAGES,
    GATEWAY_GONE_S,
    STAGES,
    Accepted,
    Spent,
    Stage,
    StageBatch,
    StepDetail,
    StepQuery,
)
from tests.support.engine_shell import ENGINE, Shell, engine_shell, virtual

STEPPED = FakeSettings(step_s=0.01, prefill_tokens_per_s=100.0, chunk_tokens=10)
"""A prompt of 10 tokens takes 0.11 s a chunk."""
DELIVER = STAGES.index(Stage.DELIVER)


def stages(spent: Spent | None) -> dict[str, float]:
    """Return the stages in seconds, which sum to the time of the stream."""
    assert spent is not None
    assert abs(sum(spent.us) - (spent.until - spent.received_at) * 1e6) < 1
    return {stage.value: us / 1e6 for stage, us in zip(ENGINE_STAGES, spent.us, strict=True) if us}


async def news(shell: Shell) -> list[StageBatch]:
    """Keep what the engine tells of its stages."""
    batches: list[StageBatch] = []
    await shell.gateway.bus.subscribe(StageBatch, batches.append)
    return batches


@virtual
async def test_the_first_and_the_last_delta_say_where_the_time_went():
    async with engine_shell(fake=STEPPED) as shell:
        answer = await shell.gateway.ask(shell.gateway.submit(text="x" * 100, max_tokens=10))
        assert isinstance(answer, Accepted)
        await asyncio.sleep(2)

        deltas = shell.gateway.deltas(answer.stream)
        told = [delta.extra.spent if delta.extra else None for delta in deltas]
        assert not any(told[1:-1])
        assert {"prefill": 0.28} == stages(told[0])
        assert {"prefill": 0.28, "decode": 0.09} == stages(told[-1])
        assert (25, 10, 1, 12) == (
            told[-1].prefill_tokens,
            told[-1].decode_tokens,
            told[-1].first_step,
            told[-1].last_step,
        )


@virtual
async def test_rendering_is_tokenize_and_the_reply_says_how_long_it_was_held():
    async with engine_shell(fake=FakeSettings(step_s=0.01, render_s=0.05)) as shell:
        answer = await shell.gateway.ask(shell.gateway.submit())
        await asyncio.sleep(1)

        assert 50_000 == answer.held_us
        last = shell.gateway.deltas(answer.stream)[-1]
        assert 0.05 == stages(last.extra.spent)["tokenize"]


@virtual
async def test_a_stream_cut_by_its_deadline_says_where_the_time_went():
    async with engine_shell() as shell:
        stream = await shell.gateway.accepted(max_tokens=4000, deadline_s=0.5)
        await asyncio.sleep(1)

        spent = shell.gateway.deltas(stream)[-1].extra.spent
        assert 0.5 <= sum(stages(spent).values()) < 0.7
        assert spent.decode_tokens > 40


@virtual
async def test_a_stream_cut_by_the_end_of_the_drain_says_where_the_time_went():
    async with engine_shell(drain_s=0.5) as shell:
        stream = await shell.gateway.accepted(max_tokens=4000)
        shell.runtime.stop.set()
        await asyncio.sleep(1)

        last = shell.gateway.deltas(stream)[-1].extra
        assert last.error is not None
        assert stages(last.spent)["decode"] > 0.4


@virtual
async def test_a_stream_whose_gateway_is_gone_is_told_to_whoever_listens():
    async with engine_shell(gateways=2) as shell:
        batches, lost = await news(shell), shell.gateways[1]
        await lost.ask(lost.submit(max_tokens=4000))
        await asyncio.sleep(0.5)
        lost.is_beating = False
        await asyncio.sleep(GATEWAY_GONE_S + 1)

        orphans = [orphan for batch in batches for orphan in batch.orphans]
        assert [RequestId("chatcmpl-x")] == [orphan.request for orphan in orphans]
        assert stages(orphans[0].spent)["decode"] > 1


@virtual
async def test_news_go_out_while_there_are_any_and_no_longer():
    async with engine_shell() as shell:
        batches = await news(shell)
        await asyncio.sleep(1)
        assert [] == batches

        await shell.gateway.accepted(max_tokens=50)
        await asyncio.sleep(2)

        assert 4 <= len(batches) <= 8
        moves = [move for batch in batches for move in batch.moves]
        assert ["tokenize", "queue", "prefill", "decode", "deliver"] == [
            STAGES[move.stage].value for move in moves
        ]
        assert 50 == sum(batch.steps.decode_tokens for batch in batches)
        assert 50 == sum(batch.steps.steps for batch in batches)
        assert all(0 <= move.ago_us <= 110_000 for move in moves)


@virtual
async def test_a_cancelled_stream_moves_to_its_end():
    async with engine_shell() as shell:
        batches = await news(shell)
        stream = await shell.gateway.accepted(max_tokens=4000)
        await asyncio.sleep(0.3)
        shell.gateway.cancel(stream)
        await asyncio.sleep(0.3)

        assert DELIVER == [move.stage for batch in batches for move in batch.moves][-1]


@virtual
async def test_the_steps_of_a_request_are_told_while_it_runs_and_after():
    async with engine_shell() as shell:
        stream = await shell.gateway.accepted(max_tokens=100)
        await asyncio.sleep(0.5)
        running = await steps(shell, "chatcmpl-x")
        await asyncio.sleep(2)
        over = await steps(shell, "chatcmpl-x")

        assert shell.gateway.is_over(stream)
        assert (1, 100) == (over.first_step, over.last_step)
        assert 1 < running.last_step < 100
        assert 5 * 2 == len(over.head_ms) == len(over.tail_batch)
        assert 90 == sum(span.steps for span in over.middle)
        assert [(0, 1, 1)] == [(run.token, run.step, run.per_step) for run in over.runs[0]]
        assert not (await steps(shell, "another")).is_known


@virtual
async def test_heartbeats_name_the_boot():
    async with engine_shell() as shell:
        await asyncio.sleep(1)

        assert boot_id() == shell.last_beat.boot


def test_a_boot_has_a_name():
    assert len(boot_id()) == 36
    assert boot_id() == boot_id()


async def steps(shell: Shell, request: str) -> StepDetail:
    """Ask the engine."""
    query = StepQuery(engine=EngineId(ENGINE), request=RequestId(request))
    detail = await shell.gateway.bus.request(query, timeout_s=5.0)
    assert isinstance(detail, StepDetail)
    return detail
