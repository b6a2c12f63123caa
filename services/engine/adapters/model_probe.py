"""Loads a model into the engine that would serve it and asks it what an order says: `python -m services.engine.adapters.model_probe`.

A program of its own: no bus, no other service. Its options are the engine's settings; the order comes as JSON on stdin, answers go to
stdout as JSON lines (`shared.models.probe`), logs to stderr. It judges nothing and has no deadlines: who started it does.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import BinaryIO

import msgspec

from services.engine.adapters import vllm_preload
from services.engine.ports import EngineFailedError, Job, Limits, Piece, RefusedError
from services.engine.settings import PREFIX, EngineSettings
from shared import logs, runtime, settings
from shared.clock import loop_clock
from shared.errors import UserError
from shared.ids import RequestId
from shared.messages import ChatPrompt, Priority, Prompt, Sampling, TokensPrompt
from shared.models.probe import (
    Answered,
    Begun,
    Broke,
    Done,
    Line,
    Loaded,
    Order,
    PrefixShared,
    Score,
    Scored,
    Speed,
)

TAIL_TOKENS = 8
"""What requests with a common prefix end with, each with tokens of its own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one order; return the exit code: 0 also where a step failed, which the lines say."""
    lines = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries that print must not spoil the lines
    try:
        words = sys.argv[1:] if argv is None else argv
        chosen = settings.load(EngineSettings, prefix=PREFIX, argv=words)
    except UserError as error:
        runtime.complain(error)
        return runtime.EXIT_USER_ERROR
    logs.configure(chosen.log, service="probe")
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    asyncio.run(_run(lines, chosen, order))
    return 0


async def _run(lines: BinaryIO, chosen: EngineSettings, order: Order) -> None:
    await _Probe(lines).run(chosen, order)


class _Probe:
    """One order under way."""

    def __init__(self, lines: BinaryIO) -> None:
        self._lines = lines
        self._pieces: dict[str, list[Piece]] = defaultdict(list)
        self._over: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._clock = loop_clock()

    async def run(self, chosen: EngineSettings, order: Order) -> None:
        """Load, carry out, free everything."""
        vllm_preload.preload()
        from services.engine.adapters.vllm_score import ScoringEngine  # noqa: PLC0415 - after the switches of `preload`

        self._engine = ScoringEngine(chosen.vllm)
        try:
            if await self._step("load", self._load):
                await self._carry_out(order)
        finally:
            await self._engine.stop()
        self._say(Done())

    async def _carry_out(self, order: Order) -> None:
        if order.questions:
            await self._step("answers", lambda: self._answers(order))
        if order.prefix_requests:
            await self._step("prefix", lambda: self._share_prefix(order))
        score = order.score
        if score is not None:
            await self._step("score", lambda: self._score(score))

    def _say(self, line: Line) -> None:
        self._lines.write(msgspec.json.encode(line) + b"\n")
        self._lines.flush()

    async def _step(self, name: str, act: Callable[[], Awaitable[None]]) -> bool:
        self._say(Begun(name))
        try:
            await act()
        except (EngineFailedError, RefusedError) as error:
            self._say(Broke(step=name, reason=str(error)))
            return False
        return True

    async def _load(self) -> None:
        began = self._clock()
        self._limits: Limits = await self._engine.start(self._take)
        self._say(
            Loaded(
                seconds=self._clock() - began,
                engine=f"{self._limits.backend} {self._limits.version}",
                context_tokens=self._limits.max_model_len,
                block_tokens=self._limits.block_tokens,
            )
        )

    async def _answers(self, order: Order) -> None:
        began = self._clock()
        answers = await asyncio.gather(
            *(self._answer(seed, order) for seed in range(len(order.questions)))
        )
        seconds = self._clock() - began
        for answered in answers:
            self._say(answered)
        self._say(
            Speed(
                step="answers",
                tokens=sum(len(answered.token_ids) for answered in answers),
                seconds=seconds,
            )
        )

    async def _answer(self, seed: int, order: Order) -> Answered:
        question = order.questions[seed]
        messages = msgspec.json.encode([{"role": "user", "content": question}])
        sampling = Sampling(
            temperature=order.temperature, seed=seed, max_tokens=order.answer_tokens, logprobs=0
        )
        pieces = await self._ask(f"answer-{seed}", ChatPrompt(messages_json=messages), sampling)
        told = [piece.extra.logprobs or () for piece in pieces if piece.extra is not None]
        return Answered(
            question=question,
            text="".join(piece.text for piece in pieces),
            token_ids=[token for piece in pieces for token in piece.token_ids],
            logprobs=[each.logprob for some in told for each in some],
            finish=str(pieces[-1].finish),
        )

    async def _share_prefix(self, order: Order) -> None:
        block = max(1, self._limits.block_tokens)
        room = self._limits.max_model_len - TAIL_TOKENS - 1
        length = max(1, min(order.prefix_tokens, room) // block) * block
        vocabulary = self._engine.vocab_size
        # The middle of the vocabulary: neither control tokens nor a lone byte.
        prefix = [vocabulary // 2 + n % 97 for n in range(length)]
        tails = [
            [vocabulary // 3 + n * TAIL_TOKENS + place for place in range(TAIL_TOKENS)]
            for n in range(order.prefix_requests)
        ]
        prompts = [TokensPrompt(token_ids=[*prefix, *tail]) for tail in tails]
        sampling = Sampling(temperature=0.0, max_tokens=1)
        began = self._clock()
        first = await self._ask("prefix-0", prompts[0], sampling)
        self._say(Speed(step="prefill", tokens=length + TAIL_TOKENS, seconds=self._clock() - began))
        others = await asyncio.gather(
            *(self._ask(f"prefix-{n}", each, sampling) for n, each in enumerate(prompts[1:], 1))
        )
        usages = [pieces[-1].extra and pieces[-1].extra.usage for pieces in (first, *others)]
        self._say(
            PrefixShared(
                prompt_tokens=sum(usage.prompt_tokens for usage in usages if usage),
                cached_tokens=sum(usage.cached_tokens for usage in usages if usage),
            )
        )

    async def _score(self, score: Score) -> None:
        token_ids = await self._engine.tokens(score.prompt)
        prompt_tokens = len(token_ids)
        if score.generate:
            sampling = Sampling(temperature=0.0, max_tokens=score.generate)
            pieces = await self._ask("score", TokensPrompt(token_ids=token_ids), sampling)
            token_ids = [*token_ids, *(token for piece in pieces for token in piece.token_ids)]
        positions = await self._engine.score(token_ids, top=score.top)
        self._say(Scored(token_ids=token_ids, prompt_tokens=prompt_tokens, positions=positions))

    async def _ask(self, key: str, prompt: Prompt, sampling: Sampling) -> list[Piece]:
        """Return all pieces of an answer. Raises `RefusedError`, `EngineFailedError`."""
        await self._engine.submit(
            Job(
                key=key,
                request=RequestId(key),
                prompt=prompt,
                sampling=sampling,
                priority=Priority.DEFAULT,
                trace={},
            )
        )
        await self._over[key].wait()
        pieces = self._pieces.pop(key)
        extra = pieces[-1].extra
        if extra is not None and extra.error is not None:
            raise EngineFailedError(extra.error.message)
        return pieces

    def _take(self, key: str, piece: Piece) -> None:
        self._pieces[key].append(piece)
        extra = piece.extra
        if extra is not None and (extra.usage is not None or extra.error is not None):
            self._over[key].set()


if __name__ == "__main__":
    sys.exit(main())
