"""The chunks of a streamed answer as values, before framing: one shape for each API."""

from __future__ import annotations

from typing import Protocol

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from services.gateway.call import Call
from services.gateway.openai.ending import (
    chat_finish,
    choice_count,
    completion_finish,
    usage_object,
)
from services.gateway.openai.logprobs import chat_logprobs, completion_logprobs, text_length
from services.gateway.openai.responses import (
    ChatCompletionChunk,
    ChunkChoice,
    ChunkDelta,
    Completion,
    CompletionChoice,
    FunctionPiece,
    Note,
    StopReason,
    ToolCallPiece,
)
from shared.ids import RequestId
from shared.messages import Finish, TokenLogprob, ToolCallDelta, Usage

Chunk = ChatCompletionChunk | Completion


class ChunkShape(Protocol):
    """Makes the chunks of one answer; nothing here blocks or raises."""

    def opening(self) -> list[Chunk]:
        """Return what comes before the first word. No state."""
        ...

    def text(self, choice: int, text: str, logprobs: list[TokenLogprob] | None) -> Chunk:
        """Return a chunk with new text. Counts text offsets, so once for each piece that has log probabilities."""
        ...

    def tool_calls(self, choice: int, pieces: list[ToolCallDelta]) -> Chunk | None:
        """Return a chunk with pieces of tool calls, where the API has them. No state."""
        ...

    def finish(self, choice: int, finish: Finish, stop_reason: StopReason) -> Chunk:
        """Return the chunk that ends a choice. No state."""
        ...

    def continued(self, choice: int, note: Note) -> Chunk:
        """Return an empty chunk that says that another engine goes on. No state."""
        ...

    def usage(self, usage: Usage) -> Chunk:
        """Return the last chunk, which has the token counts and no choice. No state."""
        ...


class ChatShape:
    """Chunks of `chat.completion.chunk`."""

    def __init__(self, call: Call, *, request_id: RequestId, created: int) -> None:
        self._call = call
        self._request_id = request_id
        self._created = created

    def opening(self) -> list[Chunk]:
        """Each choice begins with its role, as OpenAI's do."""
        return [
            self._chunk(ChunkChoice(index=index, delta=ChunkDelta(role="assistant", content="")))
            for index in range(choice_count(self._call))
        ]

    def text(self, choice: int, text: str, logprobs: list[TokenLogprob] | None) -> Chunk:
        alternatives = self._call.sampling.logprobs
        shown = (
            chat_logprobs(logprobs, alternatives)
            if logprobs is not None and alternatives is not None
            else None
        )
        return self._chunk(
            ChunkChoice(index=choice, delta=ChunkDelta(content=text), logprobs=shown)
        )

    def tool_calls(self, choice: int, pieces: list[ToolCallDelta]) -> Chunk | None:
        delta = ChunkDelta(tool_calls=[_tool_call_piece(piece) for piece in pieces])
        return self._chunk(ChunkChoice(index=choice, delta=delta))

    def finish(self, choice: int, finish: Finish, stop_reason: StopReason) -> Chunk:
        return self._chunk(
            ChunkChoice(
                index=choice,
                delta=ChunkDelta(),
                finish_reason=chat_finish(finish),
                stop_reason=stop_reason,
            )
        )

    def continued(self, choice: int, note: Note) -> Chunk:
        empty = self._chunk(ChunkChoice(index=choice, delta=ChunkDelta()))
        return replace(empty, headrace=note)

    def usage(self, usage: Usage) -> Chunk:
        return ChatCompletionChunk(
            id=self._request_id,
            created=self._created,
            model=self._call.model,
            choices=[],
            usage=usage_object(usage),
        )

    def _chunk(self, choice: ChunkChoice) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._request_id,
            created=self._created,
            model=self._call.model,
            choices=[choice],
            usage=_usage_before_the_end(self._call),
        )


class CompletionShape:
    """Chunks of `text_completion`."""

    def __init__(self, call: Call, *, request_id: RequestId, created: int) -> None:
        self._call = call
        self._request_id = request_id
        self._created = created
        self._offsets = [0] * choice_count(call)

    def opening(self) -> list[Chunk]:
        """There are no roles in this API."""
        return []

    def text(self, choice: int, text: str, logprobs: list[TokenLogprob] | None) -> Chunk:
        alternatives = self._call.sampling.logprobs
        shown = None
        if logprobs is not None and alternatives is not None:
            shown = completion_logprobs(logprobs, alternatives, offset=self._offsets[choice])
            self._offsets[choice] += text_length(logprobs)
        return self._chunk(CompletionChoice(index=choice, text=text, logprobs=shown))

    def tool_calls(self, choice: int, pieces: list[ToolCallDelta]) -> Chunk | None:
        """There are no tools in this API."""
        return None

    def finish(self, choice: int, finish: Finish, stop_reason: StopReason) -> Chunk:
        return self._chunk(
            CompletionChoice(
                index=choice,
                text="",
                finish_reason=completion_finish(finish),
                stop_reason=stop_reason,
            )
        )

    def continued(self, choice: int, note: Note) -> Chunk:
        return replace(self._chunk(CompletionChoice(index=choice, text="")), headrace=note)

    def usage(self, usage: Usage) -> Chunk:
        return Completion(
            id=self._request_id,
            created=self._created,
            model=self._call.model,
            choices=[],
            usage=usage_object(usage),
        )

    def _chunk(self, choice: CompletionChoice) -> Completion:
        return Completion(
            id=self._request_id,
            created=self._created,
            model=self._call.model,
            choices=[choice],
            usage=_usage_before_the_end(self._call),
        )


def _usage_before_the_end(call: Call) -> UnsetType | None:
    return None if call.include_usage else UNSET


def _tool_call_piece(piece: ToolCallDelta) -> ToolCallPiece:
    return ToolCallPiece(
        index=piece.index,
        id=UNSET if piece.id is None else piece.id,
        type=UNSET if piece.id is None else "function",
        function=FunctionPiece(
            name=UNSET if piece.name is None else piece.name, arguments=piece.arguments
        ),
    )
