"""Deltas → the one body of an answer that is not streamed, and how much of the bound of such an answer a delta takes."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType
from typing_extensions import override

from services.gateway.call import ApiError, Call
from services.gateway.openai.ending import (
    chat_finish,
    choice_count,
    completion_finish,
    continued_note,
    failure_of,
    usage_object,
)
from services.gateway.openai.logprobs import chat_logprobs, completion_logprobs
from services.gateway.openai.responses import (
    AnsweredFunction,
    AnsweredToolCall,
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    Completion,
    CompletionChoice,
    Note,
    StopReason,
)
from shared.ids import RequestId
from shared.messages import Delta, DeltaExtra, Finish, TokenLogprob, ToolCallDelta, Usage

LOGPROB_CHARS = 256
"""What an entry with log probabilities counts for against the bound."""


def chars_of(delta: Delta) -> int:
    """Return what a delta counts for against the bound of an answer in one piece."""
    chars, extra = len(delta.text), delta.extra
    if extra is not None:
        chars += LOGPROB_CHARS * sum(1 + len(entry.top) for entry in extra.logprobs or ())
        chars += sum(len(piece.arguments) for piece in extra.tool_calls or ())
    return chars


def answer_too_large() -> ApiError:
    """Return the failure of an answer beyond the bound."""
    return ApiError(
        500,
        "The answer is too large to be sent in one piece; use `stream`, or a smaller `max_tokens` or `n`.",
        kind="server_error",
        code="answer_too_large",
    )


_encode = msgspec.json.Encoder().encode


class _Call(msgspec.Struct):
    id: str = ""
    name: str = ""
    arguments: list[str] = []


class _Choice(msgspec.Struct):
    texts: list[str] = []
    logprobs: list[TokenLogprob] = []
    calls: dict[int, _Call] = {}
    finish: Finish | None = None
    stop_reason: StopReason = None

    def take_call(self, piece: ToolCallDelta) -> None:
        call = self.calls.setdefault(piece.index, _Call())
        call.id = piece.id or call.id
        call.name = piece.name or call.name
        call.arguments.append(piece.arguments)


class AnswerBuilder:
    """Collects one answer; it is over when `complete` or `failure` says so."""

    def __init__(self, call: Call, *, request_id: RequestId, created: int) -> None:
        self._call = call
        self._request_id = request_id
        self._created = created
        self._choices = [_Choice() for _ in range(choice_count(call))]
        self._unfinished = len(self._choices)
        self._note: Note | UnsetType = UNSET
        self.failure: ApiError | None = None
        """Why there will be no answer."""

    @override
    def __repr__(self) -> str:
        return f"<AnswerBuilder {self._request_id} unfinished={self._unfinished} {self.failure!r}>"

    @property
    def complete(self) -> bool:
        """Whether every choice has ended well."""
        return self._unfinished == 0 and self.failure is None

    def add(self, delta: Delta, choice: int) -> None:
        """Take a delta of a choice; what comes after a failure is dropped."""
        if self.failure is not None:
            return
        if delta.extra is not None or delta.finish is not None:
            self.failure = failure_of(delta)
            if self.failure is not None:
                return
        state = self._choices[choice]
        if delta.text:
            state.texts.append(delta.text)
        if delta.extra is not None:
            self._take_extra(state, delta.extra)
        if delta.finish is not None:
            self._unfinished -= state.finish is None
            state.finish = delta.finish

    def continued(self, *, is_exact: bool) -> None:
        """Note that another engine goes on; one inexact seam makes the whole inexact."""
        was_exact = self._note is UNSET or self._note.continued == "exact"
        self._note = continued_note(is_exact=is_exact and was_exact)

    def body(self, usage: Usage) -> bytes:
        """Return the answer; only when `complete`. `usage` is over all prompts and choices."""
        assert self.complete, self
        if self._call.kind == "chat":
            return _encode(
                ChatCompletion(
                    id=self._request_id,
                    created=self._created,
                    model=self._call.model,
                    choices=[self._chat(index, state) for index, state in enumerate(self._choices)],
                    usage=usage_object(usage),
                    headrace=self._note,
                )
            )
        return _encode(
            Completion(
                id=self._request_id,
                created=self._created,
                model=self._call.model,
                choices=[self._text(index, state) for index, state in enumerate(self._choices)],
                usage=usage_object(usage),
                headrace=self._note,
            )
        )

    def _take_extra(self, state: _Choice, extra: DeltaExtra) -> None:
        if extra.logprobs is not None:
            state.logprobs.extend(extra.logprobs)
        for piece in extra.tool_calls or ():
            state.take_call(piece)
        if extra.stop_reason is not None:
            state.stop_reason = extra.stop_reason

    def _chat(self, index: int, state: _Choice) -> ChatChoice:
        assert state.finish is not None
        text = "".join(state.texts)
        calls = [
            AnsweredToolCall(
                id=call.id,
                function=AnsweredFunction(name=call.name, arguments="".join(call.arguments)),
            )
            for _, call in sorted(state.calls.items())
        ]
        alternatives = self._call.sampling.logprobs
        return ChatChoice(
            index=index,
            message=AnswerMessage(
                content=None if calls and not text else text, tool_calls=calls or UNSET
            ),
            logprobs=None if alternatives is None else chat_logprobs(state.logprobs, alternatives),
            finish_reason=chat_finish(state.finish),
            stop_reason=state.stop_reason,
        )

    def _text(self, index: int, state: _Choice) -> CompletionChoice:
        assert state.finish is not None
        alternatives = self._call.sampling.logprobs
        return CompletionChoice(
            index=index,
            text="".join(state.texts),
            logprobs=(
                None
                if alternatives is None
                else completion_logprobs(state.logprobs, alternatives, offset=0)
            ),
            finish_reason=completion_finish(state.finish),
            stop_reason=state.stop_reason,
        )
