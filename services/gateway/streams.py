"""Every open stream of this gateway, and what to do when its deltas do not come in order. No clock, no bus.

The usual delta costs one look-up, one comparison and the call of the stream's sink. A gap holds later deltas back (bounded) and
asks the engine
to send again; a stream that stays quiet is asked about too, since a lost *last* delta leaves no gap to see. What cannot be
repaired is lost.
The sink closes the stream when it has its last delta. Late deltas of closed streams are dropped, and their engine is told to
stop, but not often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec
from typing_extensions import override

from shared.ids import EngineId, StreamNo
from shared.messages import Delta, Resent, TokenBatch

Sink = Callable[[Delta, float], None]
"""Takes the deltas of one stream in order, each with the moment of its arrival; must be short and must not raise."""


class StreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of repair."""

    max_held: int = 1024
    """Deltas kept behind a gap; more is a lost stream (at 100 tokens/s: 10 s of silence about the gap)."""
    max_asks: int = 3
    """Unsuccessful questions in a row before a stream counts as lost."""
    put_off_s: float = 1.0
    """A question that reached no engine is asked again after this, then after twice this: it may be on its way back to the bus."""
    max_deaf_s: float = 30.0
    """After so long without a bus the streams are lost."""
    quiet_s: float = 4.0
    """Without a delta for this long the engine is asked whether one was lost; doubled each time up to `quiet_max_s`."""
    quiet_max_s: float = 60.0
    stray_cancel_s: float = 1.0
    """At most one cancel per closed stream in this time."""
    strays_kept: int = 1024
    """Closed streams remembered for that."""


class LossReason(StrEnum):
    """Why a stream cannot go on."""

    GONE = "gone"
    """The engine does not have the missing deltas any more."""
    NO_ANSWER = "no_answer"
    """The engine did not answer, or its answers did not fill the gap."""
    NO_BUS = "no_bus"
    """The bus was away for too long."""
    TOO_FAR = "too_far"
    """More deltas came behind the gap than are kept."""


class AskResend(msgspec.Struct, frozen=True):
    """Request `Resend` from the engine, then call `on_resent` or `on_no_answer`."""

    engine: EngineId
    stream: StreamNo
    from_seq: int


class CancelStray(msgspec.Struct, frozen=True):
    """Tell the engine that nobody listens to this stream."""

    engine: EngineId
    stream: StreamNo


class StreamLost(msgspec.Struct, frozen=True):
    """The stream was closed; tell its owner."""

    engine: EngineId
    stream: StreamNo
    reason: LossReason


Effect = AskResend | CancelStray | StreamLost


class OpenStream:
    """One stream: what comes next and where it goes."""

    __slots__ = (
        "ask_at",
        "asked_from",
        "asking",
        "asks",
        "engine",
        "expected",
        "held",
        "no",
        "patience_s",
        "quiet_since",
        "seen",
        "sink",
        "started",
    )

    def __init__(self, no: StreamNo, engine: EngineId, sink: Sink) -> None:
        self.no = no
        self.engine = engine
        self.sink = sink
        self.expected = 0
        self.held: dict[int, Delta] = {}
        self.asking = False
        """A question is under way, or is put off."""
        self.ask_at: float | None = None
        """When a question that was put off is due."""
        self.asked_from = 0
        """What was missing when the last question left."""
        self.asks = 0
        self.started = False
        self.seen = -1
        self.quiet_since = 0.0
        self.patience_s = 0.0


class StreamTable:
    """The open streams by number."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._open: dict[StreamNo, OpenStream] = {}
        self._strays: dict[StreamNo, float] = {}
        self._last_no = 0
        self.duplicates = 0
        self.gaps = 0
        self.strays = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def max_deaf_s(self) -> float:
        """How long the streams outlive the bus."""
        return self._settings.max_deaf_s

    @override
    def __repr__(self) -> str:
        return f"<StreamTable {len(self._open)} open, {self.gaps} gaps, {self.strays} strays>"

    def open(self, engine: EngineId, sink: Sink) -> StreamNo:
        """Open a stream at an engine and return its number; do so before the submit, the first delta may overtake the reply."""
        self._last_no += 1
        no = StreamNo(self._last_no)
        self._open[no] = OpenStream(no, engine, sink)
        return no

    def started(self, no: StreamNo) -> None:
        """Note that the engine has the stream, so that silence is worth a question."""
        stream = self._open.get(no)
        if stream is not None:
            stream.started = True

    def close(self, no: StreamNo, *, now: float, is_early: bool = True) -> None:
        """Take no more deltas. Unknown numbers are ignored. Of one closed early more will come; the caller cancels it at the engine."""
        if self._open.pop(no, None) is not None and is_early:
            self._remember(no, now)

    def on_batch(self, batch: TokenBatch, *, now: float) -> list[Effect]:
        """Hand the deltas to their sinks; the hot path."""
        effects: list[Effect] = []
        get = self._open.get
        for delta in batch.deltas:
            stream = get(delta.stream)
            if stream is None:
                self._stray(batch.engine, delta.stream, now, effects)
            elif delta.seq == stream.expected and not stream.held:
                stream.expected = delta.seq + 1
                stream.sink(delta, now)
            else:
                self._out_of_order(stream, delta, now, effects)
        return effects

    def on_resent(self, resent: Resent, *, now: float) -> list[Effect]:
        """Take the answer of an engine to `AskResend`."""
        effects: list[Effect] = []
        stream = self._open.get(resent.stream)
        if stream is None:
            return effects
        if resent.gone:
            self._lose(stream, LossReason.GONE, effects)
            return effects
        self._run(stream, resent.deltas, now)
        if stream.no in self._open:
            if not stream.held:
                self._settle(stream)
            elif not self._is_settled(stream):
                self._ask_again(stream, effects)
        return effects

    def on_no_answer(self, no: StreamNo) -> list[Effect]:
        """Note that the engine did not answer `AskResend`, although the bus works."""
        effects: list[Effect] = []
        stream = self._open.get(no)
        if stream is not None and not self._is_settled(stream):
            self._ask_again(stream, effects)
        return effects

    def put_off(self, no: StreamNo, *, now: float, is_vain: bool) -> list[Effect]:
        """Note that `AskResend` reached nobody: the engine is away (`is_vain`), or the bus is, which says nothing about the engine."""
        effects: list[Effect] = []
        stream = self._open.get(no)
        if stream is None or self._is_settled(stream):
            return effects
        stream.asks += is_vain
        if stream.asks >= self._settings.max_asks:
            self._lose(stream, LossReason.NO_ANSWER, effects)
        else:
            stream.ask_at = now + self._settings.put_off_s * max(1, stream.asks)
        return effects

    def lose_all(self, reason: LossReason) -> list[Effect]:
        """Give up every stream that an engine has."""
        effects: list[Effect] = []
        for stream in list(self._open.values()):
            if stream.started or stream.expected > 0:
                self._lose(stream, reason, effects)
        return effects

    def tick(self, *, now: float) -> list[Effect]:
        """Ask about streams that have been quiet; call about once a second."""
        effects: list[Effect] = []
        for stream in self._open.values():
            if stream.ask_at is not None:
                if now >= stream.ask_at and not self._is_settled(stream):
                    self._ask(stream, effects)
            elif stream.seen != stream.expected:
                stream.seen = stream.expected
                stream.quiet_since = now
                stream.patience_s = self._settings.quiet_s
            elif now - stream.quiet_since >= stream.patience_s and not stream.asking:
                longer_s = max(self._settings.quiet_s, 2 * stream.patience_s)
                stream.patience_s = min(longer_s, self._settings.quiet_max_s)
                stream.quiet_since = now
                if stream.started or stream.expected > 0:
                    self._ask(stream, effects)
        return effects

    def suspect(self) -> None:
        """Have the next tick ask about every stream that does not move until then: deltas may have been lost unseen."""
        for stream in self._open.values():
            stream.seen = stream.expected
            stream.patience_s = 0.0

    def _out_of_order(
        self, stream: OpenStream, delta: Delta, now: float, effects: list[Effect]
    ) -> None:
        if delta.seq < stream.expected or delta.seq in stream.held:
            self.duplicates += 1
            return
        if delta.seq == stream.expected:
            self._run(stream, (delta,), now)
            return
        if len(stream.held) >= self._settings.max_held:
            self._lose(stream, LossReason.TOO_FAR, effects)
            return
        stream.held[delta.seq] = delta
        if not stream.asking:
            self.gaps += 1
            self._ask(stream, effects)

    def _run(self, stream: OpenStream, deltas: Iterable[Delta], now: float) -> None:
        """Deliver what is now in order, from `deltas` and from what was held."""
        held = stream.held
        for delta in deltas:
            if delta.seq >= stream.expected:
                held.setdefault(delta.seq, delta)
        while (following := held.pop(stream.expected, None)) is not None:
            stream.expected += 1
            stream.sink(following, now)
            if stream.no not in self._open:
                held.clear()

    def _ask(self, stream: OpenStream, effects: list[Effect]) -> None:
        stream.asking = True
        stream.ask_at = None
        stream.asked_from = stream.expected
        effects.append(AskResend(stream.engine, stream.no, stream.expected))

    def _ask_again(self, stream: OpenStream, effects: list[Effect]) -> None:
        """Ask once more, unless that was in vain too often."""
        stream.asks += 1
        if stream.asks >= self._settings.max_asks:
            self._lose(stream, LossReason.NO_ANSWER, effects)
        else:
            self._ask(stream, effects)

    def _is_settled(self, stream: OpenStream) -> bool:
        """Return whether all that a question was about has come, maybe by itself; if any of it has, the question was not in vain."""
        if stream.expected > stream.asked_from:
            stream.asks = 0
            if not stream.held:
                self._settle(stream)
                return True
        return False

    def _settle(self, stream: OpenStream) -> None:
        stream.asking = False
        stream.ask_at = None
        stream.asks = 0

    def _lose(self, stream: OpenStream, reason: LossReason, effects: list[Effect]) -> None:
        self._open.pop(stream.no, None)
        effects.append(StreamLost(stream.engine, stream.no, reason))

    def _stray(self, engine: EngineId, no: StreamNo, now: float, effects: list[Effect]) -> None:
        self.strays += 1
        told_at = self._strays.get(no)
        if told_at is None or now - told_at >= self._settings.stray_cancel_s:
            self._remember(no, now)
            effects.append(CancelStray(engine, no))

    def _remember(self, no: StreamNo, now: float) -> None:
        """Keep when a closed stream was last told off; the oldest make room."""
        self._strays.pop(no, None)
        self._strays[no] = now
        if len(self._strays) > self._settings.strays_kept:
            del self._strays[next(iter(self._strays))]
