"""Whose requests an engine answers now, and where each stands. Pure."""

from __future__ import annotations

from services.engine.stepbook import StepBook
from services.engine.streams import Stream, Streams
from shared.blackbox.layout import Request
from shared.messages import Stage


def under_way(streams: Streams, book: StepBook) -> list[Request]:
    """Return all live streams, the oldest first."""
    return [_request(stream, book.standing(stream.key)) for stream in streams.live.values()]


def _request(stream: Stream, standing: tuple[Stage, int] | None) -> Request:
    stage, kv_blocks = standing or ("", 0)
    return Request(
        request=stream.request,
        stage=stage,
        prompt_tokens=stream.prompt_tokens,
        tokens=stream.work.completion_tokens,
        kv_blocks=kv_blocks,
    )
