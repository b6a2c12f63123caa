"""What is asked of a model that is loaded only to be looked at, and what its process answers: JSON lines, pure values.

The asking side imports no model library; the answering side (`services.engine.adapters.model_probe`) judges nothing.
"""

from __future__ import annotations

import msgspec

from shared.messages import ChatPrompt, TextPrompt, TokensPrompt

PROGRAM = "services.engine.adapters.model_probe"
"""Run as `python -m`, with the engine's settings as options and an `Order` on stdin."""
MAX_TOP = 100
"""Most alternatives at a position."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Go on behind a prompt with the likeliest tokens, then look at all tokens together."""

    prompt: ChatPrompt | TextPrompt | TokensPrompt
    generate: int = 0
    """Tokens to go on with; fewer where the model ends before."""
    top: int = 0
    """Alternatives at each position."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with the model, in this order."""

    questions: tuple[str, ...] = ()
    """Each is the only message of a conversation."""
    answer_tokens: int = 256
    """Longest answer."""
    temperature: float = 0.7
    """Of the answers; each has a seed of its own, the same every time."""
    prefix_requests: int = 0
    """Requests that begin with the same tokens, the first before all others; 0: none."""
    prefix_tokens: int = 1024
    """About so many; whole blocks of the engine's pool."""
    score: Score | None = None


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """A step begins: `load`, `answers`, `prefix`, `score`."""

    step: str


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """The engine is ready."""

    seconds: float
    engine: str
    """As `vllm 0.32.0`."""
    context_tokens: int
    block_tokens: int


class Answered(msgspec.Struct, frozen=True, kw_only=True, tag="answered"):
    """The answer to one question."""

    question: str
    text: str
    token_ids: list[int]
    logprobs: list[float]
    """Of each token, natural."""
    finish: str


class PrefixShared(msgspec.Struct, frozen=True, kw_only=True, tag="prefix"):
    """What the requests with a common prefix said in their usage, together."""

    prompt_tokens: int
    cached_tokens: int


class Speed(msgspec.Struct, frozen=True, kw_only=True, tag="speed"):
    """What a step was like, for information."""

    step: str
    tokens: int
    seconds: float


class Option(msgspec.Struct, frozen=True, array_like=True):
    """A token at a position."""

    token_id: int
    text: str
    logprob: float


class Position(msgspec.Struct, frozen=True, array_like=True):
    """One token, and the most likely ones in its place, the likeliest first."""

    token: Option
    top: list[Option]


class Scored(msgspec.Struct, frozen=True, kw_only=True, tag="scored"):
    """What the model thinks of the tokens of a `Score`; of the first one of all it thinks nothing."""

    token_ids: list[int]
    prompt_tokens: int
    """How many of them are the prompt's."""
    positions: list[Position]
    """Of the tokens from the second one on."""


class Broke(msgspec.Struct, frozen=True, kw_only=True, tag="broke"):
    """A step failed; steps behind it follow unless it was `load`."""

    step: str
    reason: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The last line."""


Line = Begun | Loaded | Answered | PrefixShared | Speed | Scored | Broke | Done
