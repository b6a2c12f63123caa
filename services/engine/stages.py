"""What the engine tells of its stages beside the streams themselves: batches of news, streams that lost their gateway, steps on request."""

from __future__ import annotations

from collections import deque

from typing_extensions import override

from services.engine.stepbook import StepBook
from services.engine.streams import Stream
from shared import logs
from shared.bus import Bus
from shared.clock import loop_clock, stamp_clock, wall_time_s
from shared.errors import HeadraceError
from shared.ids import EngineId, ServiceName
from shared.messages import Orphan, Spent, StageBatch, StepDetail, StepQuery
from shared.quiet import Quiet

MAX_ORPHANS = 256
"""In one batch, which a message of 1 MiB must hold with its moves."""
KEPT_ORPHANS = 4096
"""Waiting for a batch; the oldest go first."""


class StageDesk:
    """Publishes, never waits. Made inside the running loop."""

    def __init__(self, bus: Bus, book: StepBook, *, service: ServiceName, engine: EngineId) -> None:
        self._bus = bus
        self._book = book
        self._service = service
        self._engine = engine
        self._clock = stamp_clock()
        self._orphans: deque[Orphan] = deque(maxlen=KEPT_ORPHANS)
        self._log = logs.get("engine").bind(engine=engine)
        self._quiet = Quiet(loop_clock())

    @override
    def __repr__(self) -> str:
        return f"<StageDesk {self._book!r} orphans={len(self._orphans)}>"

    def adopt(self, stream: Stream, spent: Spent | None) -> None:
        """Take a stream whose gateway is gone: nobody else can tell of it."""
        if spent is not None:
            self._orphans.append(Orphan(stream.request, stream.trace, spent))

    def publish(self) -> None:
        """Send what is new since the last time, if anything is."""
        if not self._book.has_news and not self._orphans:
            return
        now = self._clock()
        moves, steps, dropped = self._book.news(now)
        orphans = [self._orphans.popleft() for _ in range(min(len(self._orphans), MAX_ORPHANS))]
        batch = StageBatch(
            service=self._service,
            engine=self._engine,
            at=now,
            unix_s=wall_time_s(),
            moves=moves,
            steps=steps,
            orphans=orphans,
            dropped=dropped,
        )
        try:
            self._bus.publish(batch)
        except HeadraceError as error:
            if times := self._quiet.due(type(error).__name__):
                self._log.warning("stage_batch_unsent", reason=str(error), times=times)

    async def on_query(self, query: StepQuery) -> StepDetail:
        """Return the steps of a request."""
        detail = self._book.detail(self._engine, query.request)
        if not detail.is_known:
            return detail
        return dated(detail, now=self._clock(), unix_s=wall_time_s())


def dated(detail: StepDetail, *, now: float, unix_s: float) -> StepDetail:
    """Return the steps with the wall time at which they began; `now` and `unix_s` are of one moment."""
    fields = {name: getattr(detail, name) for name in detail.__struct_fields__}
    return StepDetail(**fields | {"unix_s": unix_s - (now - detail.began_at)})
