"""Prefix warmth on real vLLM: what a gateway would expect of the next turn of a conversation is about what vLLM then finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from services.engine.ports import Job
from services.engine.steps.step import Step
from services.engine.warmth.map import BlockMap
from services.engine.warmth.pieces import PieceBook
from services.gateway.warmth import Found, WarmthView
from shared.ids import EngineId, ServiceName
from shared.messages import Chain, ChatPrompt, Warmth
from shared.prefixes import chain_of, unpacked
from tests.support.engine_rig import EngineRig, job_of
from tests.support.vllm_rig import chat

E1 = EngineId("e1")
SALT = 5
QUESTION = "What do rivers do where the land is flat, and why do they wander there more than in the hills? "
ANSWER = "They slow down, drop their sand, and cut their banks on the outer side of each bend. "


class Ear:
    """An engine's book of warmth, and the view of a gateway that hears all of it."""

    def __init__(self) -> None:
        self.pieces = PieceBook(10_000)
        self.blocks = BlockMap(self.pieces)
        self.chain: Chain | None = None
        self.view = WarmthView()
        self.view.beat(E1, 0)
        self.seq = 0

    def hear(self, step: Step) -> None:
        """Take the record of a step; the only prompt under way is that of `chain`."""
        if step.blocks is None:
            return
        self.blocks.apply(step.blocks)
        for told in step.blocks.prompts:
            if self.chain is not None:
                self.blocks.prompt(self.chain, told)

    def expected(self, prompt: ChatPrompt) -> Found:
        """Return what a gateway expects of a prompt now."""
        hashes, tiers = self.pieces.news(10_000)
        if hashes:
            self.seq += 1
            news = Warmth(
                service=ServiceName("m"), engine=E1, seq=self.seq, hashes=hashes, tiers=tiers
            )
            self.view.hear(news)
        chain = chain_of(prompt, SALT)
        return self.view.found(E1, chain, unpacked(chain.hashes))


@contextmanager
def listening(rig: EngineRig) -> Iterator[Ear]:
    ear = Ear()
    listeners = rig.engine.book.listeners
    listeners.append(ear.hear)
    try:
        yield ear
    finally:
        listeners.remove(ear.hear)


async def cached(rig: EngineRig, ear: Ear, prompt: ChatPrompt) -> tuple[int, int]:
    """Return how many tokens a prompt has, and how many of them were found."""
    ear.chain = chain_of(prompt, SALT)
    job: Job = job_of(prompt, max_tokens=2, ignore_eos=True)
    pieces = await rig.answer(job)
    extra = pieces[-1].extra
    assert extra is not None
    assert extra.usage is not None
    return extra.usage.prompt_tokens, extra.usage.cached_tokens


def test_what_is_expected_of_the_next_turn_is_found(vllm_rig: EngineRig):
    first = chat(QUESTION * 5)
    second = chat(QUESTION * 5, ANSWER * 4, QUESTION)
    block = vllm_rig.limits.block_tokens

    async def scenario() -> None:
        with listening(vllm_rig) as ear:
            assert 0 == ear.expected(first).total_bytes
            tokens, _ = await cached(vllm_rig, ear, first)

            warm = ear.expected(second)
            _, found = await cached(vllm_rig, ear, second)

            share = warm.total_bytes / len(first.messages_json)
            assert share > 0.5
            assert abs(share * tokens - found) <= block + 64  # a block and a piece

    vllm_rig.run(scenario())


def test_the_engine_says_that_it_tells(vllm_rig: EngineRig):
    assert vllm_rig.limits.tells_blocks
