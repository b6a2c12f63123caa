"""Frames between an engine and its render processes come out as they went in, and nothing but a decode error comes of others."""

from __future__ import annotations

from contextlib import suppress

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from services.engine.adapters.render_frames import (
    ChatJob,
    FrameReader,
    NotRendered,
    Ready,
    Rendered,
    RenderJob,
    Reply,
    Setup,
    TextJob,
    frame,
)

numbers = st.integers(0, 2**40)
values = st.one_of(
    st.builds(ChatJob, numbers, st.binary(max_size=40), st.none() | st.binary(max_size=9)),
    st.builds(TextJob, numbers, st.text(max_size=40)),
    st.builds(Rendered, numbers, st.lists(st.integers(0, 2**31 - 1), max_size=40)),
    st.builds(NotRendered, numbers, st.text(max_size=40)),
    st.just(Ready()),
)
KINDS = (Setup, RenderJob, Reply)


@given(st.lists(values, max_size=6), st.lists(st.integers(1, 30), min_size=1))
def test_frames_come_out_as_they_went_in_however_they_are_cut(sent, sizes):
    stream, reader, bodies = b"".join(map(frame, sent)), FrameReader(), []
    cut = 0
    while stream:
        size = sizes[cut % len(sizes)]
        bodies += reader.feed(stream[:size])
        stream, cut = stream[size:], cut + 1

    decoded = [
        msgspec.msgpack.decode(
            body, type=RenderJob if isinstance(value, ChatJob | TextJob) else Reply
        )
        for body, value in zip(bodies, sent, strict=True)
    ]
    assert sent == decoded


@given(st.lists(st.binary(max_size=60), max_size=6), st.integers(0, 80), st.binary(max_size=4))
def test_other_bytes_are_bodies_that_are_none_or_wait_for_more(pieces, at, put):
    whole = frame(ChatJob(1, b"[]", None)) + frame(Rendered(1, [5, 6]))
    reader = FrameReader()
    for piece in (whole[:at] + put + whole[at:], *pieces):
        for body in reader.feed(piece):
            for kind in KINDS:
                with suppress(msgspec.DecodeError, UnicodeDecodeError):
                    msgspec.msgpack.decode(body, type=kind)
