"""From the events of an OpenAI stream to pieces.

Servers send the usage after the last finish, so the piece that ends the last choice is held until usage or end of stream.
Reasoning that a server splits off (`reasoning_content`) has no place in our contract and is left out.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from services.engine.ports import Piece
from shared.messages import (
    DeltaExtra,
    Finish,
    StreamError,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Usage,
)

_Byte = Annotated[int, Meta(ge=0, le=255)]
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""What a server sends goes over the bus, whose integers end at 64 bits."""
_Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class _TopEntry(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[_Byte] | None = None


class _LogprobEntry(_TopEntry):
    top_logprobs: list[_TopEntry] | None = None


class _Logprobs(msgspec.Struct):
    """Chat's shape (`content`) and the old endpoint's (the other three)."""

    content: list[_LogprobEntry] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: _Count = 0
    id: str | None = None
    function: _Function | None = None


class _DeltaPart(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _DeltaPart | None = None
    text: str | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | _Number | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Count | None = None


class _UsagePart(msgspec.Struct):
    prompt_tokens: _Count = 0
    completion_tokens: _Count | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _UsagePart | None = None
    error: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Event).decode
_DONE = b"[DONE]"
_NO_ERROR = (b"", b"null")
_FINISHES = {
    "stop": Finish.STOP,
    "eos_token": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "content_filter": Finish.STOP,
    "length": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
}
_CLIENT_FAULTS = range(400, 429)


class BrokenStreamError(Exception):
    """The stream cannot be continued."""

    def __init__(self, error: StreamError) -> None:
        super().__init__(error.message)
        self.error = error


def broken(message: str) -> BrokenStreamError:
    """Return the error of a server that failed us: another engine may do better."""
    return BrokenStreamError(StreamError(message=message))


class ChunkReader:
    """Turns the events of one stream into pieces; the last one carries the usage."""

    def __init__(self, *, choices: int, prompt_tokens: int) -> None:
        self._open = set(range(choices))
        self._choices = choices
        self._prompt_tokens = prompt_tokens
        self._completion_tokens = 0
        self._usage: Usage | None = None
        self._held: Piece | None = None
        self.is_complete = False

    @property
    def open_choices(self) -> int:
        """How many choices have not finished."""
        return len(self._open)

    def read(self, event: bytes) -> list[Piece]:
        """Return the pieces of an event. Raises `BrokenStreamError`."""
        if event == _DONE:
            return self.end()
        if not event:
            return []  # some servers keep the connection alive with it
        try:
            parsed = _decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise broken(f"the server sent an event that is none: {error}") from error
        if bytes(parsed.error) not in _NO_ERROR:
            raise BrokenStreamError(_stream_error(parsed.error))
        pieces = [
            piece for choice in parsed.choices or () if (piece := self._piece(choice)) is not None
        ]
        if parsed.usage is not None:
            self._usage = _usage(parsed.usage, self._completion_tokens)
        return pieces

    def end(self) -> list[Piece]:
        """Return the held piece at the end of the stream. Raises `BrokenStreamError` if choices are open."""
        if self.is_complete:
            return []
        if self._held is None or self._open:
            raise broken("the server ended the stream before the answer was complete")
        self.is_complete = True
        usage = self._usage or Usage(
            prompt_tokens=self._prompt_tokens, completion_tokens=self._completion_tokens
        )
        held = self._held
        extra = held.extra or DeltaExtra()
        return [
            Piece(
                held.choice,
                held.text,
                held.token_ids,
                held.finish,
                msgspec.structs.replace(extra, usage=usage),
            )
        ]

    def fail(self, error: StreamError) -> list[Piece]:
        """Return what ends the stream now: the error for every open choice, or the answer if it was whole."""
        if self._held is not None and not self._open:
            return self.end()
        last = max(self._open)
        extra = DeltaExtra(error=error)
        self.is_complete = True
        return [
            Piece(choice, "", [], Finish.ERROR, extra if choice == last else None)
            for choice in sorted(self._open)
        ]

    def _piece(self, choice: _Choice) -> Piece | None:
        if choice.index not in self._open:
            if 0 <= choice.index < self._choices and not choice.finish_reason:
                return None  # some servers send an empty chunk after the finish
            raise broken(f"the server sent a choice {choice.index} that is not open")
        finish = _finish(choice.finish_reason)
        part = choice.delta or _DeltaPart()
        text = choice.text or part.content or ""
        extra = _extra(choice, part)
        if not text and finish is None and extra is None:
            return None  # the role, or an empty chunk
        self._completion_tokens += 1 if text or extra is not None else 0
        piece = Piece(choice.index, text, [], finish, extra)
        if finish is None:
            return piece
        self._open.discard(choice.index)
        if self._open:
            return piece
        self._held = piece
        return None


def _finish(reason: str | None) -> Finish | None:
    if not reason:
        return None
    if reason not in _FINISHES:
        raise broken(f"the server ended the answer with {reason!r}")
    return _FINISHES[reason]


def _extra(choice: _Choice, part: _DeltaPart) -> DeltaExtra | None:
    logprobs = _logprobs(choice.logprobs) if choice.logprobs else None
    calls = [_tool_call(call) for call in part.tool_calls or ()] or None
    if logprobs is None and calls is None and choice.stop_reason is None:
        return None
    return DeltaExtra(logprobs=logprobs, tool_calls=calls, stop_reason=choice.stop_reason)


def _tool_call(call: _ToolCall) -> ToolCallDelta:
    function = call.function or _Function()
    return ToolCallDelta(
        index=call.index,
        id=call.id or None,
        name=function.name or None,
        arguments=function.arguments or "",
    )


def _logprobs(logprobs: _Logprobs) -> list[TokenLogprob] | None:
    if logprobs.content:
        return [
            TokenLogprob(
                token=entry.token,
                logprob=entry.logprob,
                token_bytes=_token_bytes(entry),
                top=[_top(top) for top in entry.top_logprobs or ()],
            )
            for entry in logprobs.content
        ]
    tokens, values = logprobs.tokens or [], logprobs.token_logprobs or []
    tops = logprobs.top_logprobs or [None] * len(tokens)
    found = [
        TokenLogprob(
            token=token,
            logprob=value,
            token_bytes=token.encode(),
            top=[_top(_TopEntry(*item)) for item in (top or {}).items()],
        )
        for token, value, top in zip(tokens, values, tops, strict=False)
        if value is not None
    ]
    return found or None


def _top(entry: _TopEntry) -> TopLogprob:
    return TopLogprob(token=entry.token, logprob=entry.logprob, token_bytes=_token_bytes(entry))


def _token_bytes(entry: _TopEntry) -> bytes:
    return entry.token.encode() if entry.bytes is None else bytes(entry.bytes)


def _usage(usage: _UsagePart, counted_tokens: int) -> Usage:
    completion_tokens = usage.completion_tokens
    details = usage.prompt_tokens_details or _PromptDetails()
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=counted_tokens if completion_tokens is None else completion_tokens,
        cached_tokens=details.cached_tokens or 0,
    )


class ErrorBody(msgspec.Struct):
    """OpenAI's error object, as far as servers agree on it."""

    message: str = ""
    param: str | None = None
    code: str | int | None = None


def error_body(raw: bytes) -> ErrorBody:
    """Return what an error says, whatever shape it has."""
    try:
        return msgspec.json.decode(raw, type=ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ErrorBody(message=raw[:500].decode(errors="replace"))


def _stream_error(raw: msgspec.Raw) -> StreamError:
    body = error_body(bytes(raw))
    is_client_fault = isinstance(body.code, int) and body.code in _CLIENT_FAULTS
    return StreamError(
        message=body.message or "the server reported an error without a message",
        retryable=not is_client_fault,
        param=body.param,
    )
