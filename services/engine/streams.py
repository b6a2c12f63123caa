"""The streams of this engine: their numbers, their outstanding work, and what is kept of them.

Values in, values out: no loop, no bus, no clock. The shell sends the deltas and talks to the backend.
"""

from __future__ import annotations

from typing_extensions import override

from services.engine.lifecycle import LIFE, Event, Phase
from services.engine.ports import Piece
from services.engine.ring import RingStore, StreamRing
from services.engine.settings import RingSettings
from services.engine.work import StreamWork, TotalWork
from shared.ids import GatewayId, StreamNo
from shared.messages import Delta, DeltaExtra, Finish, Spent, StreamError, Submit, Usage

Sized = tuple[Delta, int]
"""A delta and its size in bytes."""


def key_of(gateway: GatewayId, stream: StreamNo) -> str:
    """Return the name by which a backend knows a stream; the caller's request id is never part of it."""
    return f"{gateway}:{stream}"


def said_of(submit: Submit) -> list[int | None]:
    """Return how many tokens each choice has said before; none for those that have ended."""
    if not submit.prior:
        return [0] * submit.sampling.n
    said: list[int | None] = [None] * submit.sampling.n
    for prior in submit.prior:
        said[prior.choice] = len(prior.token_ids)
    return said


class Stream:
    """One stream that is being answered."""

    __slots__ = (
        "chain",
        "deadline_at",
        "gateway",
        "is_finished",
        "key",
        "next_seq",
        "no",
        "phase",
        "prompt_tokens",
        "request",
        "ring",
        "trace",
        "work",
    )

    def __init__(
        self, submit: Submit, *, now: float, allowed_tokens: int, total: TotalWork
    ) -> None:
        self.key = key_of(submit.gateway, submit.stream)
        self.gateway = submit.gateway
        self.no = submit.stream
        self.request = submit.request
        self.trace = submit.trace
        self.chain = submit.chain
        self.phase = Phase.SUBMITTING
        self.deadline_at = now + submit.deadline_s
        self.prompt_tokens = 0
        self.next_seq = 0
        said = said_of(submit)
        self.is_finished = [tokens is None for tokens in said]
        self.work = StreamWork(total, allowed_tokens=allowed_tokens, said=said)
        self.ring = StreamRing()

    @override
    def __repr__(self) -> str:
        return f"<Stream {self.key} {self.phase} seq={self.next_seq}>"

    def number(self, piece: Piece) -> Delta:
        """Return the piece as the stream's next delta, and account for it."""
        choice = piece.choice
        # Backends that do not tell token ids send a piece for each token or so.
        self.work.done(choice, len(piece.token_ids) or (1 if piece.text else 0))
        if piece.finish is not None:
            self.is_finished[choice] = True
            self.work.end_choice(choice)
        seq = self.next_seq
        self.next_seq = seq + 1
        return Delta(self.no, seq, choice, piece.text, piece.token_ids, piece.finish, piece.extra)

    def last_pieces(
        self, finish: Finish, error: StreamError | None, spent: Spent | None
    ) -> list[Piece]:
        """Return what ends every open choice; the last piece carries the error, else the usage."""
        usage = Usage(
            prompt_tokens=self.prompt_tokens, completion_tokens=self.work.completion_tokens
        )
        extra = DeltaExtra(error=error, usage=None if error else usage, spent=spent)
        open_choices = [index for index, is_done in enumerate(self.is_finished) if not is_done]
        open_choices = open_choices or [0]
        last = open_choices[-1]
        return [
            Piece(choice, "", [], finish, extra if choice == last else None)
            for choice in open_choices
        ]


def is_last(piece: Piece) -> bool:
    """Return whether nothing of the stream comes after this piece."""
    extra = piece.extra
    return extra is not None and (extra.usage is not None or extra.error is not None)


class Streams:
    """All live streams by key, and the rings of the finished ones."""

    def __init__(self, settings: RingSettings) -> None:
        self._rings = RingStore(settings)
        self._total = TotalWork()
        self.live: dict[str, Stream] = {}

    @override
    def __repr__(self) -> str:
        return f"<Streams {len(self.live)} live, {self._total.tokens} tokens owed>"

    @property
    def outstanding_tokens(self) -> int:
        """Upper bound of the token work left."""
        return self._total.tokens

    @property
    def all_begun(self) -> bool:
        """Whether every stream has its first token, so that no prompt is being computed."""
        return all(stream.work.is_begun for stream in self.live.values())

    @property
    def completed_tokens(self) -> int:
        """Tokens generated since the start."""
        return self._total.completed_tokens

    @property
    def ring_bytes(self) -> int:
        """Bytes kept for resends."""
        return self._rings.total_bytes

    def open(self, submit: Submit, *, now: float, context_tokens: int) -> Stream:
        """Begin a stream that the backend is about to be asked for."""
        allowed_tokens = submit.sampling.max_tokens
        stream = Stream(
            submit,
            now=now,
            allowed_tokens=context_tokens if allowed_tokens is None else allowed_tokens,
            total=self._total,
        )
        self.live[stream.key] = stream
        return stream

    def accept(self, stream: Stream, *, prompt_tokens: int, context_tokens: int) -> None:
        """Note that the backend took the job. It may even have finished it by now."""
        stream.phase = LIFE.next(stream.phase, Event.ACCEPT)
        stream.prompt_tokens = prompt_tokens
        if stream.phase is Phase.RUNNING:
            stream.work.accept(prompt_tokens=prompt_tokens, context_tokens=context_tokens)

    def refuse(self, stream: Stream) -> None:
        """Note that the backend did not take the job."""
        self._leave(stream, Event.REFUSE)

    def piece(self, stream: Stream, piece: Piece) -> Sized:
        """Number a piece of the backend and keep it."""
        delta = stream.number(piece)
        return delta, self._rings.append(stream.ring, delta)

    def finish(self, stream: Stream, *, now: float) -> None:
        """Note that the backend's last piece has been numbered."""
        self._finish(stream, Event.LAST, now=now)

    def cut(
        self,
        stream: Stream,
        finish: Finish,
        error: StreamError | None = None,
        *,
        spent: Spent | None = None,
        now: float,
    ) -> list[Sized]:
        """End a stream from our side; return its last deltas (none where the submit is unanswered)."""
        if stream.phase is Phase.SUBMITTING:
            self._leave(stream, Event.CUT)
            return []
        sized = [self.piece(stream, piece) for piece in stream.last_pieces(finish, error, spent)]
        self._finish(stream, Event.CUT, now=now)
        return sized

    def drop(self, stream: Stream) -> None:
        """End a stream that nobody reads any more."""
        self._leave(stream, Event.DROP)

    def drop_finished(self, key: str) -> None:
        """Forget the deltas of a finished stream; an unknown one changes nothing."""
        self._rings.drop_finished(key)

    def resend(self, key: str, from_seq: int, *, max_bytes: int) -> list[Delta] | None:
        """Return the deltas from a number on, as many as fit; none where they are gone."""
        stream = self.live.get(key)
        ring = self._rings.finished(key) if stream is None else stream.ring
        return None if ring is None else ring.since(from_seq, max_bytes=max_bytes)

    def due(self, now: float) -> list[Stream]:
        """Return the live streams whose deadline has passed."""
        return [stream for stream in self.live.values() if stream.deadline_at <= now]

    def of_gateway(self, gateway: GatewayId) -> list[Stream]:
        """Return the live streams of a gateway."""
        return [stream for stream in self.live.values() if stream.gateway == gateway]

    def forget_old(self, now: float) -> None:
        """Drop what is kept of streams that finished long ago."""
        self._rings.forget_old(now)

    def _finish(self, stream: Stream, event: Event, *, now: float) -> None:
        stream.phase = LIFE.next(stream.phase, event)
        stream.work.end()
        del self.live[stream.key]
        self._rings.finish(stream.key, stream.ring, now=now)

    def _leave(self, stream: Stream, event: Event) -> None:
        stream.phase = LIFE.next(stream.phase, event)
        stream.work.end()
        del self.live[stream.key]
        self._rings.drop(stream.ring)
