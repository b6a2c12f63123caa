"""The conversation of a chat request, and its canonical JSON for the engine's template.

Templates see plain strings only. A list of text parts is joined by line breaks, as vLLM does for templates that take strings:
a template that iterates over parts takes a string as well, the reverse is rare.
`developer` becomes `system`: most templates know no developer role, and some silently drop a message of a role that they do not know.
A refusal that is sent back is what the assistant said, so it is content.
An assistant turn that only calls tools has empty content, which templates test like a missing one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, assert_never

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from services.gateway.call import invalid

NAME_PATTERN = r"^[^\s<|\\/>]+$(?!\n)"
"""OpenAI's for the names of participants; `$` alone would let a line break through."""

ParticipantName = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=64)]
CallId = Annotated[str, Meta(min_length=1, max_length=256)]
_encode = msgspec.json.Encoder().encode


class TextPart(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Text as one part of a message."""

    text: str


class RefusalPart(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="refusal"):
    """What the assistant said instead of an answer."""

    refusal: str


Content = str | list[TextPart | RefusalPart]


class _Turn(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="role",
):
    name: ParticipantName | None = None


class SystemMessage(_Turn, frozen=True, tag="system"):
    """Instructions to the model."""

    content: Content


class DeveloperMessage(_Turn, frozen=True, tag="developer"):
    """Instructions to the model, in OpenAI's newer word."""

    content: Content


class UserMessage(_Turn, frozen=True, tag="user"):
    """What the user said."""

    content: Content


class ToolMessage(_Turn, frozen=True, tag="tool"):
    """What a tool answered."""

    content: Content
    tool_call_id: CallId


class CalledFunction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The function that the assistant called, and the arguments' JSON text as the model wrote it."""

    name: str
    arguments: str


class ToolCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call of an earlier turn. Clients that collect a stream send `index` back; it has no meaning here."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | UnsetType | None = UNSET


class AssistantMessage(_Turn, frozen=True, tag="assistant"):
    """What the assistant said. Clients send a whole earlier answer back, so its empty fields are taken."""

    content: Content | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None
    audio: None = None
    function_call: None = None


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


def count_parts(messages: list[ChatMessage]) -> int:
    """Return how many content parts and tool calls the messages have."""
    parts = sum(len(message.content) for message in messages if isinstance(message.content, list))
    calls = (message.tool_calls for message in messages if isinstance(message, AssistantMessage))
    return parts + sum(map(len, filter(None, calls)))


def canonical_json(messages: list[ChatMessage]) -> bytes:
    """Return the conversation as the engine gets it: no nulls, plain strings, known roles."""
    return _encode([_plain(message, index) for index, message in enumerate(messages)])


def _plain(message: ChatMessage, index: int) -> ChatMessage:
    match message:
        case AssistantMessage():
            return _plain_assistant(message, index)
        case DeveloperMessage():
            return SystemMessage(content=_text(message.content), name=message.name)
        case SystemMessage() | UserMessage() | ToolMessage():
            if isinstance(message.content, str):
                return message
            return msgspec.structs.replace(message, content=_text(message.content))
        case _:
            assert_never(message)


def _plain_assistant(message: AssistantMessage, index: int) -> AssistantMessage:
    said = [message.content, message.refusal]
    texts = [_text(part) for part in said if part is not None]
    if not texts and not message.tool_calls:
        raise invalid(
            f"messages[{index}]: an assistant message needs content, a refusal or tool_calls.",
            param=f"messages[{index}].content",
        )
    calls = [ToolCall(id=call.id, function=call.function) for call in message.tool_calls or ()]
    return AssistantMessage(
        content="\n".join(texts), name=message.name, tool_calls=calls if calls else None
    )


def _text(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)
