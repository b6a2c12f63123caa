"""The shell in virtual time: cancels, deadlines, silent gateways, resends."""

from __future__ import annotations

import asyncio

from services.engine.adapters.fake import FakeEngine
from services.engine.settings import FakeSettings, RingSettings
from shared.ids import StreamNo
from shared.membus import Faults, set_faults
from shared.messages import (
    Finish,
    Refused,
    RefuseReason,
    TokenBatch,
)
from tests.support.engine_shell import FAST, engine_shell, virtual

SLOW_SUBMIT = FakeSettings(step_s=0.01, prefill_tokens_per_s=1e6, render_s=1.0)


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
        assert (await shell.gateway.resend(stream)).gone


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
async def test_a_stream_that_never_began_owes_nothing_after_its_deadline():
    fake = FakeSettings(step_s=0.1, prefill_tokens_per_s=1e9, max_streams=1)
    async with engine_shell(fake=fake) as shell:
        await shell.gateway.accepted(max_tokens=20)
        stream = await shell.gateway.accepted(max_tokens=1000, deadline_s=1.0)
        await asyncio.sleep(5)

        (last,) = shell.gateway.deltas(stream)
        assert last.finish is Finish.TIMEOUT
        assert shell.service.heartbeat().outstanding_tokens == 0


class StubbornBackend(FakeEngine):
    """Takes the job although it was cancelled meanwhile."""

    async def submit(self, job):
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            await super().submit(job)
            raise
        return await super().submit(job)


@virtual
async def test_a_backend_that_took_the_job_all_the_same_is_told_again():
    async with engine_shell(backend=StubbornBackend(FAST)) as shell:
        submit = shell.gateway.submit(max_tokens=1000, deadline_s=0.5)
        answer = await shell.gateway.ask(submit)

        assert isinstance(answer, Refused)
        assert shell.backend.load().running + shell.backend.load().waiting == 0


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
async def test_what_the_bus_did_not_take_can_be_had_again():
    async with engine_shell(outbound_bytes=2_000) as shell:
        stream = await shell.gateway.accepted(max_tokens=500)
        await asyncio.sleep(1)
        shell.bus.cut()
        await asyncio.sleep(1.5)
        shell.bus.heal()
        await asyncio.sleep(5)

        assert shell.service.counts.unsent_batches > 0
        assert len(shell.gateway.deltas(stream)) < 500
        resent = await shell.gateway.resend(stream)
        assert [delta.seq for delta in resent.deltas] == list(range(500))


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
