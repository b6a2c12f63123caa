"""Bases of all messages, and the parts that messages are made of."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

# Figures are checked where a message is read, so that nobody has to doubt them afterwards: no negative count, no time that is not a
# number, and no sum of them that leaves the range of what they become (64-bit fields of OTLP, dates of this age).
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Micros = Annotated[int, msgspec.Meta(ge=0, le=10**13)]
"""A duration in microseconds: up to 115 days."""
UnixMicros = Annotated[int, msgspec.Meta(ge=0, le=9 * 10**15)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=9e9)]
"""A duration, a moment of CLOCK_MONOTONIC, or a wall time."""
Figure = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]
"""A rate or a mean."""
Status = Annotated[int, msgspec.Meta(ge=0, le=999)]
Place = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
"""An index, a number in a sequence."""
Short = Annotated[str, msgspec.Meta(max_length=256)]
"""A name: what may become a label."""


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a message."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t"):
    """Base of all messages; the tag is `owner.name.vN`."""


class Priority(StrEnum):
    """Class of service of a request; the order is the order of service."""

    INTERACTIVE = "interactive"
    DEFAULT = "default"
    BATCH = "batch"


class ChatPrompt(Value, tag="chat", frozen=True, kw_only=True):
    """A conversation; the engine renders the model's template.

    The JSON was validated by the gateway, `null` fields are dropped, roles and content types are known ones.
    """

    messages_json: bytes
    """JSON array of OpenAI chat messages."""
    tools_json: bytes | None = None
    """JSON array of OpenAI tool definitions."""
    tool_choice: str = "auto"
    """`none`, `auto`, `required`, or `function:<name>`."""
    parallel_tool_calls: bool = True


class TextPrompt(Value, tag="text", frozen=True, kw_only=True):
    """A prompt to be tokenized as it is."""

    text: str


class TokensPrompt(Value, tag="tokens", frozen=True, kw_only=True):
    """A prompt that the caller tokenized."""

    token_ids: list[int]


Prompt = ChatPrompt | TextPrompt | TokensPrompt


class Sampling(Value, frozen=True, kw_only=True):
    """How to sample. `None` means: the model's own default (its generation config), else the neutral value."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """0 or -1: no limit."""
    min_p: float | None = None
    n: int = 1
    max_tokens: int | None = None
    """Upper bound of generated tokens; `None`: up to the context length."""
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    """Always set by the gateway, so that a continued answer can follow the same draw."""
    logprobs: int | None = None
    """Number of alternatives per token; `None`: no log probabilities at all."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    ignore_eos: bool = False
    json_object: bool = False
    """The answer must be one JSON object."""
    json_schema: bytes | None = None
    """The answer must match this JSON Schema (JSON text)."""
