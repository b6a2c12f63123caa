"""Messages that were changed on their way, bit by bit or value by value, are `Undecodable` or some message: nothing else comes of them."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.codec import decode, decode_reply, encode, tag_of
from shared.errors import Undecodable
from shared.messages import ALL_MESSAGES, ROUTES, Message
from tests.contract.golden_samples import file_of, read_index

INDEX = read_index()
KINDS = {tag_of(kind): kind for kind in ALL_MESSAGES}
NAMES = sorted(INDEX)
ASKING = [kind for kind, route in ROUTES.items() if route.replies]
CLAIMS = (
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
)
"""Headers of arrays, maps, strings and bytes that say they are 4 GiB long."""
VALUES: list[Any] = [
    *(None, True, 0, -1, 2**31, 2**63, 2**64 - 1, -(2**63), 1.5, float("nan"), float("inf")),
    *(
        "",
        "\0",
        "engine.tokens.v1",
        b"",
        b"\xff",
        [],
        {},
        [[]],
        {"t": "x"},
        msgspec.msgpack.Ext(5, b"x"),
    ),
]


def read(kind: type[Message], payload: bytes) -> None:
    """Decode; what comes out must be of its kind, and can be sent on."""
    try:
        message = decode(kind, payload)
    except Undecodable:
        return
    assert isinstance(message, kind)
    encode(message)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    match value:
        case dict():
            keys = list(value)
        case list():
            keys = list(range(len(value)))
        case _:
            keys = []
    return [path, *(place for key in keys for place in places(value[key], (*path, key)))]


@st.composite
def changed_bytes(draw: st.DrawFn) -> tuple[str, bytes]:
    """A good message in which a stretch of bytes is replaced."""
    name = draw(st.sampled_from(NAMES))
    whole = file_of(name).read_bytes()
    start = draw(st.integers(0, len(whole)))
    end = min(len(whole), start + draw(st.integers(0, 4)))
    new = draw(st.one_of(st.binary(max_size=6), st.sampled_from(CLAIMS)))
    return name, whole[:start] + new + whole[end:]


@st.composite
def changed_value(draw: st.DrawFn) -> tuple[str, bytes]:
    """A good message in which values are replaced, removed or added."""
    name = draw(st.sampled_from(NAMES))
    holder = [msgspec.msgpack.decode(file_of(name).read_bytes(), strict=False)]
    for _ in range(draw(st.integers(1, 3))):
        *path, key = draw(st.sampled_from(places(holder)[1:]))
        parent: Any = holder
        for step in path:
            parent = parent[step]
        value = copy.deepcopy(draw(st.sampled_from(VALUES)))
        action = draw(st.sampled_from(["replace", "remove", "add"]))
        if action == "remove" and path:
            del parent[key]
        elif action == "add" and isinstance(parent[key], list):
            parent[key].append(value)
        else:
            parent[key] = value
    return name, msgspec.msgpack.encode(holder[0])


@given(st.one_of(changed_bytes(), changed_value()))
def test_a_changed_message_is_undecodable_or_a_message(changed):
    name, payload = changed
    read(KINDS[INDEX[name].tag], payload)
    for kind in ASKING:
        try:
            reply = decode_reply(kind, payload)
        except Undecodable:
            continue
        assert isinstance(reply, ROUTES[kind].replies)


@given(
    st.binary(max_size=300)
    | st.builds(bytes.__add__, st.sampled_from(CLAIMS), st.binary(max_size=20))
)
@example(b"\x91" * 100_000)
@example(b"\x81\xa1t" * 100_000)
def test_any_bytes_are_undecodable_or_a_message(payload):
    for kind in ALL_MESSAGES:
        read(kind, payload)


@pytest.mark.parametrize("kind", ALL_MESSAGES, ids=tag_of)
def test_every_shorter_message_is_undecodable_or_older(kind):
    for name in NAMES:
        if KINDS[INDEX[name].tag] is kind:
            whole = file_of(name).read_bytes()
            for length in range(len(whole)):
                with pytest.raises(Undecodable):
                    decode(kind, whole[:length])
