"""What goes back to a client, field by field: answers, chunks, errors and models as OpenAI documents them.

Fields beyond OpenAI's: `stop_reason` (as vLLM has it), a model's `max_model_len`, and `headrace` (`Note`).
Absent is `UNSET`, `None` is an explicit null.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field

StopReason = str | int | None
"""The stop string or stop token id that ended a choice; null for any other end."""


class PromptTokensDetails(Struct, frozen=True):
    """How many tokens of the prompt came from the prefix cache."""

    cached_tokens: int


class UsageObject(Struct, frozen=True, kw_only=True):
    """Token counts of a request, over all its prompts and choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprobObject(Struct, frozen=True, kw_only=True):
    """An alternative at a position."""

    token: str
    logprob: float
    token_bytes: list[int] = field(name="bytes")


class TokenLogprobObject(TopLogprobObject, frozen=True, kw_only=True):
    """A sampled token and the alternatives at its position."""

    top_logprobs: list[TopLogprobObject]


class ChatLogprobs(Struct, frozen=True, kw_only=True):
    """Log probabilities of the tokens of a chat answer."""

    content: list[TokenLogprobObject]
    refusal: None = None


class CompletionLogprobs(Struct, frozen=True, kw_only=True):
    """Log probabilities of the tokens of a completion, column by column."""

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


class Note(Struct, frozen=True, kw_only=True):
    """What Headrace has to say about an answer beyond OpenAI's fields; absent where there is nothing."""

    continued: Literal["exact", "approximate"]
    """The engine was lost and another one went on: with what would have come anyway, or with something as likely."""


class AnsweredFunction(Struct, frozen=True, kw_only=True):
    """The function to call, and the JSON text of its arguments."""

    name: str
    arguments: str


class AnsweredToolCall(Struct, frozen=True, kw_only=True):
    """A tool call of an answer."""

    id: str
    type: Literal["function"] = "function"
    function: AnsweredFunction


class AnswerMessage(Struct, frozen=True, kw_only=True):
    """What the assistant says; content is null where it only calls tools."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[AnsweredToolCall] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: StopReason


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """The answer to a chat request that is not streamed."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageObject
    headrace: Note | UnsetType = UNSET


class FunctionPiece(Struct, frozen=True, kw_only=True):
    """A piece of a call; the name comes with the first."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallPiece(Struct, frozen=True, kw_only=True):
    """A piece of the tool call at `index`; id and type come with the first."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionPiece


class ChunkDelta(Struct, frozen=True, kw_only=True):
    """What a chunk adds to a choice."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCallPiece] | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """New words of a choice, or its end."""

    index: int
    delta: ChunkDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None
    stop_reason: StopReason | UnsetType = UNSET


class ChatCompletionChunk(Struct, frozen=True, kw_only=True):
    """One event of a streamed chat answer; `usage` only where it was asked for, and null in all but the last."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageObject | UnsetType | None = UNSET
    headrace: Note | UnsetType = UNSET


class CompletionChoice(Struct, frozen=True, kw_only=True):
    """One completion, or in a stream a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: StopReason | UnsetType = UNSET


class Completion(Struct, frozen=True, kw_only=True):
    """The answer to a completion request, or one event of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageObject | UnsetType | None = UNSET
    headrace: Note | UnsetType = UNSET


class ErrorObject(Struct, frozen=True, kw_only=True):
    """What went wrong, and which parameter to change."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct, frozen=True, kw_only=True):
    """The body of every answer that is not a success, and the last event of a stream that failed."""

    error: ErrorObject


class Model(Struct, frozen=True, kw_only=True):
    """A model that can be asked for."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    max_model_len: int | UnsetType = UNSET


class ModelList(Struct, frozen=True, kw_only=True):
    """All models."""

    object: Literal["list"] = "list"
    data: list[Model]
