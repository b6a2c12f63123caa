"""What an engine and its render processes say to each other: values, and their frames on a stream. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from services.engine.adapters.chat_template import ContentFormat

_HEAD_BYTES = 4


class TemplateSetup(msgspec.Struct, frozen=True, array_like=True):
    """One chat template of a model."""

    source: str
    content_format: ContentFormat


class Setup(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """First frame to a process: all that it must know of the model."""

    tokenizer_json: str
    chat: TemplateSetup | None
    """Template of chats without tools."""
    tools: TemplateSetup | None
    """Template of chats with tools; often the same one."""
    variables: dict[str, Any]
    """Names that templates may use, such as `bos_token`."""
    timeout_s: float
    """Deadline of one job."""


class ChatJob(msgspec.Struct, frozen=True, array_like=True, tag="chat"):
    """Render and tokenize a conversation."""

    number: int
    messages_json: bytes
    tools_json: bytes | None


class TextJob(msgspec.Struct, frozen=True, array_like=True, tag="text"):
    """Tokenize a text."""

    number: int
    text: str


RenderJob = ChatJob | TextJob


class Rendered(msgspec.Struct, frozen=True, array_like=True, tag="rendered"):
    """A job is done."""

    number: int
    token_ids: list[int]


class NotRendered(msgspec.Struct, frozen=True, array_like=True, tag="not-rendered"):
    """A job can't be done; the message is for the client."""

    number: int
    message: str


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The setup was taken; jobs may come."""


Reply = Ready | Rendered | NotRendered

_encode = msgspec.msgpack.Encoder().encode


def frame(value: msgspec.Struct) -> bytes:
    """Return a value as length and bytes."""
    body = _encode(value)
    return len(body).to_bytes(_HEAD_BYTES, "big") + body


class FrameReader:
    """Cuts a stream into the bodies of frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes of the stream, yield the bodies that are whole now."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _HEAD_BYTES:
            end = _HEAD_BYTES + int.from_bytes(buffer[:_HEAD_BYTES], "big")
            if len(buffer) < end:
                return
            body = bytes(buffer[_HEAD_BYTES:end])
            del buffer[:end]
            yield body
