"""Whatever comes in whatever order over a bad bus: numbers without a hole, one end for each stream, nothing left behind."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.settings import FakeSettings
from shared.errors import BusError
from shared.membus import Faults, set_faults
from shared.messages import Accepted, Cancel, Delta, Resend, Submit, TokenBatch
from shared.vloop import run_virtual
from tests.support.engine_shell import PretendGateway, Shell, ends, engine_shell

BAD = Faults(duplicate_ratio=0.3, reorder_ratio=0.3, delay_s=0.3)
LOSSY = Faults(drop_ratio=0.2, duplicate_ratio=0.2, reorder_ratio=0.2, delay_s=0.1)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 1), st.integers(1, 300)),
        st.tuples(st.just("cancel"), st.integers(0, 1), st.integers(1, 12)),
        st.tuples(st.just("submit_and_cancel"), st.integers(0, 1), st.integers(1, 300)),
        st.tuples(st.just("wait"), st.just(0), st.integers(1, 20)),
        st.tuples(st.just("silence"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("noise"), st.integers(0, 1), st.just(0)),
    ),
    max_size=25,
)


class Chaos:
    """Carries out acts and keeps what was answered."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.accepted: set[tuple[str, int]] = set()
        self.unwanted: set[tuple[str, int]] = set()

    async def ask(self, gateway: PretendGateway, submit: Submit) -> None:
        try:
            answer = await gateway.ask(submit)
        except BusError:
            self.unwanted.add((gateway.name, submit.stream))
            return
        if isinstance(answer, Accepted):
            self.accepted.add((gateway.name, submit.stream))

    async def act(self, name: str, index: int, amount: int) -> None:
        gateway = self.shell.gateways[index]
        match name:
            case "submit" | "submit_and_cancel":
                submit = gateway.submit(max_tokens=amount, deadline_s=20.0)
                self.shell.runtime.group.create_task(self.ask(gateway, submit))
                if name == "submit_and_cancel":
                    self.cancel(gateway, submit.stream)
            case "cancel":
                self.cancel(gateway, amount)
            case "wait":
                await asyncio.sleep(amount / 10)
            case _:
                gateway.is_beating = name == "noise"

    def cancel(self, gateway: PretendGateway, stream: int) -> None:
        self.unwanted.add((gateway.name, stream))
        gateway.cancel(stream)


def by_seq(deltas: list[Delta]) -> dict[int, Delta]:
    """Return the deltas by number; twice the same is fine, two different ones are not."""
    found: dict[int, Delta] = {}
    for delta in deltas:
        assert found.setdefault(delta.seq, delta) == delta
    return found


async def scenario(acts) -> None:
    fake = FakeSettings(step_s=0.01, prefill_tokens_per_s=1e6, render_s=0.05, max_streams=4)
    async with engine_shell(fake=fake, gateways=2) as shell:
        for kind, faults in ((Submit, BAD), (Cancel, BAD), (TokenBatch, LOSSY), (Resend, BAD)):
            set_faults(shell.hub, kind, faults)
        chaos = Chaos(shell)
        for act in acts:
            await chaos.act(*act)
        always_heard = all(act[0] != "silence" for act in acts)
        await asyncio.sleep(25)

        beat = shell.service.heartbeat()
        assert (0, 0, 0) == (beat.running, beat.waiting, beat.outstanding_tokens)
        assert shell.service._streams.live == {}
        assert beat.free_blocks == beat.total_blocks
        came: dict[tuple[str, int], list[Delta]] = defaultdict(list)
        for gateway in shell.gateways:
            for batch in gateway.batches:
                for delta in batch.deltas:
                    came[gateway.name, delta.stream].append(delta)
        for name, stream in chaos.accepted - chaos.unwanted:
            gateway = next(each for each in shell.gateways if each.name == name)
            resent = await gateway.resend(stream)
            if resent.gone:
                assert not always_heard
                continue
            whole = by_seq(resent.deltas)
            assert list(whole) == list(range(len(whole)))
            assert [ends(delta) for delta in whole.values()] == [False] * (len(whole) - 1) + [True]
            assert all(whole[seq] == delta for seq, delta in by_seq(came[name, stream]).items())


@settings(max_examples=40)
@given(ACTS)
def test_numbers_ends_and_accounts_hold(acts):
    run_virtual(scenario(acts))
