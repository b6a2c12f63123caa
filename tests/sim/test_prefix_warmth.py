"""A fleet that knows what it holds: follow-up turns go where the conversation is, and nothing depends on that they do."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from services.engine.adapters.fake import FakeEngine
from services.engine.adapters.fake_batch import Batch
from services.engine.ports import Limits, Sink
from services.engine.steps.step import Step
from services.engine.warmth.blocks import Moved
from shared.ids import EngineId
from shared.membus import Faults, set_faults
from shared.messages import WARM_L3, Ledger, Warmth, WarmthQuery
from tests.support.gateway_world import SERVICE, EngineHandle, GatewayWorld, Recorder, call, play

ENGINE = {"caches_prefixes": True, "step_s": 0.01, "max_streams": 16, "total_blocks": 4096}
PAUSE_S = 1.0
"""Between the turns of a conversation."""


class Talk:
    """One conversation: each turn is all before it and some more."""

    def __init__(self, world: GatewayWorld, name: str, *, tenant: str = "t") -> None:
        self.world = world
        self.tenant = tenant
        self.text = f"{name} begins. " * 60
        self.turns = 0
        self.ledgers: list[Ledger] = []

    async def turn(self, *, gateway: int = 0) -> Recorder:
        """Say something; leaves what the ledger says of it."""
        self.turns += 1
        self.text += f"turn {self.turns} says this and that. " * 8
        size = len(self.text)
        recorder = await self.world.answer(
            call(self.text, prompt_bytes=size, work_tokens=size // 4 + 16, temperature=0.0),
            tenant=self.tenant,
            prefix_salt=self.tenant,
            gateway=gateway,
        )
        await self.world.until(lambda: self._entry(recorder))
        self.ledgers.append(self._entry(recorder))
        return recorder

    def _entry(self, recorder: Recorder) -> Ledger | None:
        entries = self.world.ledgers[SERVICE]
        return next((one for one in entries if one.request == recorder.request), None)

    @property
    def engines(self) -> list[EngineId]:
        """Where its turns went."""
        return [ledger.engine for ledger in self.ledgers]


async def fleet(world: GatewayWorld, *, engines: int = 3, **fields) -> list[EngineHandle]:
    for _ in range(2):
        await world.add_gateway()
    handles = [await world.add_engine(**(ENGINE | fields)) for _ in range(engines)]
    await asyncio.sleep(11.0)  # past the slow start
    return handles


async def talk_turns(talks: list[Talk], turns: int) -> None:
    """Let all conversations go on together, their turns through one gateway and the other by turns."""
    for number in range(turns):
        async with asyncio.TaskGroup() as group:
            for talk in talks:
                group.create_task(talk.turn(gateway=number % 2))
        await asyncio.sleep(PAUSE_S)


def test_follow_up_turns_go_where_the_conversation_is():
    async def scenario(world: GatewayWorld) -> None:
        await fleet(world)
        talks = [Talk(world, f"t{number}") for number in range(6)]

        await talk_turns(talks, 5)

        later = [ledger for talk in talks for ledger in talk.ledgers[1:]]
        assert all(1 == len(set(talk.engines)) for talk in talks), [t.engines for t in talks]
        assert 3 == len({talk.engines[0] for talk in talks})
        # Where it is the least loaded as well, it is not warmth that decides.
        assert [ledger.route for ledger in later].count("warm") > len(later) / 2
        for ledger in later:
            assert ledger.cached_tokens > 0.7 * ledger.prompt_tokens
            assert abs(ledger.expected_cached_tokens - ledger.cached_tokens) < 100
        await world.assert_nothing_is_left()

    play(scenario)


def test_without_warmth_turns_wander():
    """What the test above shows is warmth's doing."""

    async def scenario(world: GatewayWorld) -> None:
        await fleet(world, caches_prefixes=False)
        talks = [Talk(world, f"t{number}") for number in range(6)]

        await talk_turns(talks, 5)

        assert any(len(set(talk.engines)) > 1 for talk in talks)

    play(scenario)


def test_after_the_warm_engine_died_others_go_on_and_are_right():
    async def scenario(world: GatewayWorld) -> None:
        handles = await fleet(world)
        talk, same = Talk(world, "it"), Talk(world, "it")
        for number in range(3):
            await talk.turn(gateway=number % 2)
            await asyncio.sleep(PAUSE_S)
        lost = next(one for one in handles if one.service._engine == talk.engines[-1])

        lost.kill()
        last = await talk.turn()

        assert talk.engines[-1] != talk.engines[-2]
        assert last.error is None
        assert 0 == talk.ledgers[-1].cached_tokens
        await asyncio.sleep(PAUSE_S)
        for _ in range(3):
            await same.turn()
        again = await same.turn()
        assert last.texts == again.texts
        assert same.engines[-1] == talk.engines[-1]
        await asyncio.sleep(5.0)
        assert lost.service._engine not in world.gateway._router.warmth._engines
        lost.bury()

    play(scenario)


@pytest.mark.parametrize(
    "faults",
    [
        Faults(drop_ratio=0.5),
        Faults(reorder_ratio=0.5, delay_s=0.2),
        Faults(duplicate_ratio=0.5),
        Faults(drop_ratio=0.2, reorder_ratio=0.3, duplicate_ratio=0.2, delay_s=0.3),
    ],
    ids=["loss", "reorder", "twice", "all"],
)
def test_a_bad_bus_costs_warmth_for_a_while_and_nothing_else(faults):
    async def scenario(world: GatewayWorld) -> None:
        handles = await fleet(world)
        for kind in (Warmth, WarmthQuery):
            set_faults(world.hub, kind, faults)
        talks = [Talk(world, f"t{number}") for number in range(6)]

        await talk_turns(talks, 6)

        assert all(ledger.status == 200 for talk in talks for ledger in talk.ledgers)
        for kind in (Warmth, WarmthQuery):
            set_faults(world.hub, kind, Faults())
        await asyncio.sleep(5.0)
        for gateway in world.gateways:
            for handle in handles:
                desk = handle.service._warmth
                holding = gateway._router.warmth._engines[handle.service._engine]
                assert desk.seq == holding.seq
                assert dict(desk._pieces._tiers) == holding.pieces
        await talk_turns(talks, 1)
        assert "warm" in {talk.ledgers[-1].route for talk in talks}
        assert all(ledger.expected_cached_tokens for ledger in (t.ledgers[-1] for t in talks))

    play(scenario)


def test_a_gateway_that_comes_later_learns_what_is_held():
    async def scenario(world: GatewayWorld) -> None:
        await fleet(world)
        talk = Talk(world, "it")
        for _ in range(3):
            await talk.turn()
        await world.add_gateway()
        await asyncio.sleep(2.0)

        await talk.turn(gateway=2)

        assert ["warm"] == [talk.ledgers[-1].route]
        assert 1 == len(set(talk.engines))

    play(scenario)


def test_tenants_do_not_see_each_others_warmth():
    async def scenario(world: GatewayWorld) -> None:
        await fleet(world)
        mine, theirs = Talk(world, "it", tenant="a"), Talk(world, "it", tenant="b")
        for _ in range(3):
            await mine.turn()
            await asyncio.sleep(PAUSE_S)

        theirs.text, theirs.turns = mine.text, mine.turns
        await theirs.turn()
        await mine.turn()

        assert 0 == theirs.ledgers[0].expected_cached_tokens
        assert theirs.ledgers[0].route != "warm"
        assert 0 == theirs.ledgers[0].cached_tokens
        assert mine.ledgers[-1].expected_cached_tokens > 0

    play(scenario)


def test_a_hot_prefix_spreads_when_one_engine_cannot_carry_it():
    """Everybody asks about the same document at once: first where it is, then where there is room, and soon it is everywhere."""

    async def scenario(world: GatewayWorld) -> None:
        handles = await fleet(world, max_streams=4, prefill_tokens_per_s=2000.0)
        document = Talk(world, "d" * 50)
        await document.turn()
        await asyncio.sleep(PAUSE_S)
        text = document.text

        async def ask(number: int) -> Recorder:
            return await world.answer(
                call(
                    f"{text} {number}",
                    max_tokens=200,
                    prompt_bytes=len(text),
                    work_tokens=len(text) // 4 + 200,
                ),
                gateway=number % 2,
            )

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(number)) for number in range(48)]
        await asyncio.sleep(PAUSE_S)

        assert all(task.result().error is None for task in tasks)
        served = [ledger.engine for ledger in world.ledgers[SERVICE][1:]]
        counts = [served.count(handle.service._engine) for handle in handles]
        assert 48 == sum(counts)
        assert max(counts) <= 24, counts
        assert min(counts) >= 8, counts

    play(scenario)


class StoringBatch(Batch):
    """Each block of a prompt is also on disk."""

    def facts(self, number: int, *, began_at: float, ended_at: float) -> Step:
        step = super().facts(number, began_at=began_at, ended_at=ended_at)
        if step.blocks is not None:
            step.blocks.moved += [Moved(WARM_L3, True, p.hashes) for p in step.blocks.prompts]
        return step


class Storing(FakeEngine):
    """An engine with a store, of which it says all that there is to say."""

    store = "host-1"

    async def start(self, sink: Sink) -> Limits:
        self._batch = StoringBatch(self._settings)
        return msgspec.structs.replace(await super().start(sink), store=self.store)


class Elsewhere(Storing):
    """On another host."""

    store = "host-2"


def test_what_a_dead_engine_put_into_the_store_is_expected_at_its_neighbour():
    async def scenario(world: GatewayWorld) -> None:
        await fleet(world, engines=2, make=Storing)
        await world.add_engine(**ENGINE, make=Elsewhere)
        await world.add_engine(**ENGINE, make=Elsewhere)
        await asyncio.sleep(11.0)
        for number in range(12):  # until one began at a storing engine of host 1
            talk = Talk(world, f"t{number}")
            await talk.turn()
            first = next(e for e in world.engines if e.service._engine == talk.engines[0])
            if first.backend.store == "host-1":
                break
        await asyncio.sleep(PAUSE_S)
        neighbour = next(
            engine.service._engine
            for engine in world.engines
            if engine is not first and engine.backend.store == "host-1"
        )

        first.kill()
        await asyncio.sleep(5.0)
        await talk.turn()

        assert neighbour == talk.engines[-1]
        assert talk.ledgers[-1].route == "warm"
        assert talk.ledgers[-1].expected_cached_tokens > 0
        first.bury()

    play(scenario)


def test_the_next_turn_may_follow_at_once():
    """As agents do: the last report of the warm engine still has the turn before in it, which is over."""

    async def scenario(world: GatewayWorld) -> None:
        await fleet(world)
        talk = Talk(world, "it")

        for _ in range(20):
            await talk.turn()
            await asyncio.sleep(0.12)  # news leave each 0.1 s

        assert 1 == len(set(talk.engines))

    play(scenario)


class Silent(FakeEngine):
    """A backend that does not tell what it holds."""

    async def start(self, sink: Sink) -> Limits:
        return msgspec.structs.replace(await super().start(sink), tells_blocks=False)


def test_a_backend_that_cannot_tell_is_guessed_and_flagged():
    async def scenario(world: GatewayWorld) -> None:
        handles = await fleet(world, caches_prefixes=False, total_blocks=200, make=Silent)
        talk = Talk(world, "it")
        for _ in range(3):
            await talk.turn()
            await asyncio.sleep(PAUSE_S)

        held = world.gateway._router.warmth._engines
        assert {"warm"} == {ledger.route for ledger in talk.ledgers[1:]}
        assert held[talk.engines[0]].is_guess
        for handle in handles:
            guess = handle.service._warmth._guess
            assert guess is not None
            assert guess._tokens <= 200 * 16

    play(scenario)
