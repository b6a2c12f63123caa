"""Messages to bytes and back: MessagePack through msgspec, one typed decoder for each message type.

Decoding checks tag and field types; a fault is always `Undecodable`, whatever the bytes were. Knows no subject and no bus.
"""

from __future__ import annotations

from typing import Any, TypeVar, Union

import msgspec

from shared.errors import Undecodable
from shared.messages import ALL_MESSAGES, ROUTES, Message

M = TypeVar("M", bound=Message)

_encode = msgspec.msgpack.Encoder().encode

_decoders: dict[type[Message], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in ALL_MESSAGES
}
_reply_decoders: dict[type[Message], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(Union[route.replies])  # noqa: UP007 - built from a tuple
    for kind, route in ROUTES.items()
    if route.replies
}


def encode(message: Message) -> bytes:
    """Return the bytes of a message as they travel."""
    return _encode(message)


def decode(kind: type[M], payload: bytes) -> M:
    """Return the message of a type from its bytes. Raises `Undecodable`."""
    try:
        message: M = _decoders[kind].decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _undecodable(kind.__name__, payload, error) from error
    return message


def decode_reply(request: type[Message], payload: bytes) -> Message:
    """Return one of the replies that the request's route allows. Raises `Undecodable`."""
    try:
        reply: Message = _reply_decoders[request].decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _undecodable(f"reply to {request.__name__}", payload, error) from error
    return reply


def tag_of(kind: type[Message]) -> str:
    """Return the versioned tag of a message type, `owner.name.vN`."""
    return str(kind.__struct_config__.tag)


def _undecodable(what: str, payload: bytes, error: Exception) -> Undecodable:
    return Undecodable(f"{what}: {error} ({len(payload)} bytes)")
