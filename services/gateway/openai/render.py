"""Deltas → the bytes of a streamed answer, as server-sent events or as payloads without framing.

The hot path is a delta of text and nothing else: everything but the text is encoded once for each choice.
No text can split an event: JSON escapes the line breaks of the event-stream format, and the further ones that some clients'
`splitlines` knows (U+0085, U+2028, U+2029) are escaped here.
"""

from __future__ import annotations

import msgspec

from services.gateway.call import ApiError, Call
from services.gateway.openai.chunks import ChatShape, Chunk, ChunkShape, CompletionShape
from services.gateway.openai.ending import choice_count, continued_note, failure_of
from shared.ids import RequestId
from shared.messages import Delta, Usage

_MARK = "@text@"
_encode = msgspec.json.Encoder().encode


def one_line(encoded: bytes) -> bytes:
    """Escape what `str.splitlines` takes for a line break and JSON does not; UTF-8 keeps this safe on bytes."""
    return (
        encoded.replace(b"\xe2\x80\xa8", b"\\u2028")
        .replace(b"\xe2\x80\xa9", b"\\u2029")
        .replace(b"\xc2\x85", b"\\u0085")
    )


class _Framed:
    """The framed chunks of one streamed answer. After an error nothing more comes."""

    def __init__(
        self, call: Call, *, request_id: RequestId, created: int, before: bytes, after: bytes
    ) -> None:
        shape = ChatShape if call.kind == "chat" else CompletionShape
        self._shape: ChunkShape = shape(call, request_id=request_id, created=created)
        self._include_usage = call.include_usage
        self._before = before
        self._after = after
        self.failed = False
        marked = [
            self._chunk(self._shape.text(index, _MARK, None)).rpartition(_encode(_MARK))
            for index in range(choice_count(call))
        ]
        self.heads = [head for head, _, _ in marked]
        self.tail = marked[0][2]

    def opening(self) -> list[bytes]:
        return [self._chunk(chunk) for chunk in self._shape.opening()]

    def text(self, text: str, choice: int) -> bytes:
        """Return a chunk of text: the same bytes as `_chunk` makes, in a third of the time."""
        encoded = _encode(text)
        if not text.isascii():
            encoded = one_line(encoded)
        return self.heads[choice] + encoded + self.tail

    def whole(self, delta: Delta, choice: int) -> list[bytes]:
        """Return the chunks of any delta; the last one is the error where it ends its stream badly."""
        extra = delta.extra
        logprobs = extra.logprobs if extra is not None else None
        chunks: list[Chunk | None] = []
        if delta.text or logprobs:
            chunks.append(self._shape.text(choice, delta.text, logprobs))
        if extra is not None and extra.tool_calls:
            chunks.append(self._shape.tool_calls(choice, extra.tool_calls))
        failure = failure_of(delta)
        if delta.finish is not None and failure is None:
            stop_reason = extra.stop_reason if extra is not None else None
            chunks.append(self._shape.finish(choice, delta.finish, stop_reason))
        framed = [self._chunk(chunk) for chunk in chunks if chunk is not None]
        return framed if failure is None else [*framed, self.error(failure)]

    def continued(self, choice: int, *, is_exact: bool) -> bytes:
        return self._chunk(self._shape.continued(choice, continued_note(is_exact=is_exact)))

    def closing(self, usage: Usage | None) -> list[bytes]:
        if usage is None or not self._include_usage:
            return []
        return [self._chunk(self._shape.usage(usage))]

    def error(self, error: ApiError) -> bytes:
        self.failed = True
        return self._frame(one_line(error.body()))

    def _chunk(self, chunk: Chunk) -> bytes:
        return self._frame(one_line(_encode(chunk)))

    def _frame(self, payload: bytes) -> bytes:
        return self._before + payload + self._after


class ChunkRenderer:
    """One streamed answer as server-sent events.

    After an error every further call returns nothing: clients take `[DONE]` for a whole answer.
    """

    def __init__(self, call: Call, *, request_id: RequestId, created: int) -> None:
        self._framed = _Framed(
            call, request_id=request_id, created=created, before=b"data: ", after=b"\n\n"
        )

    def opening(self) -> bytes:
        """Return the role chunk of every choice; completions have none."""
        return b"".join(self._framed.opening())

    def delta(self, delta: Delta, choice: int) -> bytes:
        """Return the events of a delta; the last one is the error where it ends its stream badly (`failure_of`)."""
        framed = self._framed
        if framed.failed:
            return b""
        if delta.extra is None and delta.finish is None:
            text = delta.text
            if not text.isascii():
                return framed.text(text, choice)
            return framed.heads[choice] + _encode(text) + framed.tail if text else b""
        return b"".join(framed.whole(delta, choice))

    def continued(self, choice: int, *, is_exact: bool) -> bytes:
        """Return the event that says that another engine goes on."""
        return b"" if self._framed.failed else self._framed.continued(choice, is_exact=is_exact)

    def closing(self, usage: Usage | None) -> bytes:
        """Return the usage chunk, where it was asked for, and `[DONE]`."""
        if self._framed.failed:
            return b""
        return b"".join([*self._framed.closing(usage), b"data: [DONE]\n\n"])

    def error(self, error: ApiError) -> bytes:
        """Return the event on which OpenAI's clients raise."""
        return b"" if self._framed.failed else self._framed.error(error)


class PayloadRenderer:
    """One streamed answer as messages of a bus, one chunk each; the end is the bus's own mark, so there is no `[DONE]`."""

    def __init__(self, call: Call, *, request_id: RequestId, created: int) -> None:
        self._framed = _Framed(call, request_id=request_id, created=created, before=b"", after=b"")

    def opening(self) -> list[bytes]:
        """Return the role chunk of every choice; completions have none."""
        return self._framed.opening()

    def delta(self, delta: Delta, choice: int) -> list[bytes]:
        """Return the chunks of a delta; the last one is the error where it ends its stream badly (`failure_of`)."""
        framed = self._framed
        if framed.failed:
            return []
        if delta.extra is None and delta.finish is None:
            return [framed.text(delta.text, choice)] if delta.text else []
        return framed.whole(delta, choice)

    def continued(self, choice: int, *, is_exact: bool) -> list[bytes]:
        """Return the chunk that says that another engine goes on."""
        framed = self._framed
        return [] if framed.failed else [framed.continued(choice, is_exact=is_exact)]

    def closing(self, usage: Usage | None) -> list[bytes]:
        """Return the usage chunk where it was asked for."""
        return [] if self._framed.failed else self._framed.closing(usage)

    def error(self, error: ApiError) -> list[bytes]:
        """Return the error object."""
        return [] if self._framed.failed else [self._framed.error(error)]
