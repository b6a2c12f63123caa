"""The fake engine's answers: text, token ids and log probabilities from a seed, no model.

Token i of a choice depends on the prompt, the seeds, the choice and i alone, so another engine can go on where one stopped.
At temperature 0 the request's seed counts for nothing, as in a model. Other temperatures, penalties and biases change nothing: there
is no distribution to shape.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from hashlib import blake2b
from zlib import crc32

import msgspec

from services.engine.ports import Piece
from shared.messages import (
    DeltaExtra,
    Finish,
    Prompt,
    Sampling,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
)

_WORDS = """
    café naïve übung 你好 世界 河流 东京 한국 🙂 🚀 👩‍🔬
    the a of to and in is it you that he was for on are with as his they be at one have this from or had by hot word but
    what some we can out other were all there when up use your how said an each she which do their time if will way about
    many then them write would like so these her long make thing see him two has look more day could go come did number
    sound no most people my over know water than call first who may down side been now find any new work part take get
    place made live where after back little only round man year came show every good me give our under name very through
    just form sentence great think say help low line differ turn cause much mean before move right boy old too same tell
    does set three want air well also play small end put home read hand port large spell add even land here must big high
    such follow act why ask men change went light kind off need house picture try us again animal point mother world near
    build self earth father head stand own page should country found answer school grow study still learn plant cover
""".split()  # noqa: SIM905 - a list of 260 literals would fill five pages
VOCABULARY = (*(f" {word}" for word in _WORDS), *(f" {word}," for word in _WORDS))[:256]
_MASK = len(VOCABULARY) - 1
_STRIDE = 0x9E3779B97F4A7C15
_FACTOR = 0xBF58476D1CE4E5B9
_WORD64 = (1 << 64) - 1
_CHUNK_CHARS = 4


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What one choice is going to say, up to stop strings."""

    choice: int
    seed: int
    count: int
    """Tokens until its end."""
    finish: Finish
    """Why it ends there."""


def seed_of(prompt: Prompt, *seeds: int) -> int:
    """Return 64 bits that depend on the whole prompt and the seeds."""
    digest = blake2b(msgspec.msgpack.encode((prompt, seeds)), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def token_at(seed: int, index: int) -> int:
    """Return the id of the token at an index."""
    return ((seed + index * _STRIDE & _WORD64) * _FACTOR >> 40) & _MASK


def plan(sampling: Sampling, *, choice: int, seed: int, room: int, mean_tokens: int) -> Answer:
    """Return where a choice ends: by itself, or at its limit of `room` tokens."""
    natural = mean_tokens // 2 + seed % (mean_tokens + 1)
    natural = max(1, natural, sampling.min_tokens)
    if sampling.ignore_eos or natural > room:
        return Answer(choice=choice, seed=seed, count=room, finish=Finish.LENGTH)
    return Answer(choice=choice, seed=seed, count=natural, finish=Finish.STOP)


def words(answer: Answer) -> Iterator[Piece]:
    """Yield a plain answer token by token."""
    choice, seed = answer.choice, answer.seed
    for index in range(answer.count - 1):
        token = token_at(seed, index)
        yield Piece(choice, VOCABULARY[token], [token])
    token = token_at(seed, answer.count - 1)
    yield Piece(choice, VOCABULARY[token], [token], answer.finish)


def stamps(answer: Answer) -> Iterator[Piece]:
    """Yield tokens whose text is the moment of their making in ns of the monotonic clock."""
    for index in range(1, answer.count + 1):
        text = f"T{time.monotonic_ns():016d} "
        yield Piece(answer.choice, text, [0], answer.finish if index == answer.count else None)


def careful_words(answer: Answer, sampling: Sampling) -> Iterator[Piece]:
    """Yield an answer with stop strings, stop tokens or log probabilities."""
    held = ""
    hold_chars = max((len(stop) for stop in sampling.stop), default=1) - 1
    for index in range(answer.count):
        token = token_at(answer.seed, index)
        logprobs = logprobs_at(answer.seed, index, sampling.logprobs)
        may_stop = index + 1 > sampling.min_tokens
        if may_stop and token in sampling.stop_token_ids:
            extra = DeltaExtra(logprobs=logprobs, stop_reason=token)
            yield Piece(answer.choice, held, [token], Finish.STOP, extra)
            return
        held += VOCABULARY[token]
        cut = _first_stop(held, sampling.stop) if may_stop else None
        if cut is not None:
            extra = DeltaExtra(logprobs=logprobs, stop_reason=cut[1])
            yield Piece(answer.choice, held[: cut[0]], [token], Finish.STOP, extra)
            return
        is_end = index + 1 == answer.count
        keep_chars = 0 if is_end else hold_chars
        shown, held = held[: len(held) - keep_chars], held[len(held) - keep_chars :]
        extra_or_none = DeltaExtra(logprobs=logprobs) if logprobs else None
        yield Piece(answer.choice, shown, [token], answer.finish if is_end else None, extra_or_none)


def _first_stop(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """Return where the first stop string begins, and which one it is."""
    found = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found, default=None)


def document(choice: int, text: str, sampling: Sampling, *, room: int) -> Iterator[Piece]:
    """Yield a given text, a few characters a token; blanks at its end where more tokens are wanted."""
    chunks = _chunks(text)
    chunks += [" "] * (sampling.min_tokens - len(chunks))
    for index, chunk in enumerate(chunks[:room]):
        finish = _end(index, len(chunks), room, Finish.STOP)
        yield Piece(choice, chunk, [crc32(chunk.encode()) & _MASK], finish)


def tool_call(choice: int, name: str, arguments: str, *, seed: int, room: int) -> Iterator[Piece]:
    """Yield one call of a tool: its head, then its arguments in chunks."""
    chunks = ["", *_chunks(arguments)]
    for index, chunk in enumerate(chunks[:room]):
        if index == 0:
            call = ToolCallDelta(index=0, id=f"call_{seed:016x}{choice:x}", name=name)
        else:
            call = ToolCallDelta(index=0, arguments=chunk)
        finish = _end(index, len(chunks), room, Finish.TOOL_CALLS)
        token = crc32(chunk.encode()) & _MASK
        yield Piece(choice, "", [token], finish, DeltaExtra(tool_calls=[call]))


def _chunks(text: str) -> list[str]:
    return [text[at : at + _CHUNK_CHARS] for at in range(0, len(text), _CHUNK_CHARS)]


def _end(index: int, chunks: int, room: int, whole: Finish) -> Finish | None:
    """Return how the answer ends at this chunk, if it does."""
    if index == chunks - 1:
        return whole
    return Finish.LENGTH if index == room - 1 else None


def logprobs_at(seed: int, index: int, alternatives: int | None) -> list[TokenLogprob] | None:
    """Return the log probability of a token and of its alternatives; together they stay below 1."""
    if alternatives is None:
        return None
    token = token_at(seed, index)
    probability = 0.5 + (token_at(seed, ~index) + 1) / (len(VOCABULARY) * 2.5)
    top = [_top(token, probability)]
    rest = 1.0 - probability
    for rank in range(1, alternatives):
        rest /= 2
        top.append(_top((token + rank) & _MASK, rest))
    chosen = top[0]
    return [
        TokenLogprob(
            token=chosen.token,
            logprob=chosen.logprob,
            token_bytes=chosen.token_bytes,
            top=top[:alternatives],
        )
    ]


def _top(token: int, probability: float) -> TopLogprob:
    text = VOCABULARY[token]
    return TopLogprob(token=text, logprob=math.log(probability), token_bytes=text.encode())
