"""Requests that wait a moment before their trace is made, because something about them may still come. Pure; time comes in as a number.

An orphan, whose gateway is gone, may get a ledger after all; a request that an engine lost may get that engine's black box.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from shared.ids import EngineId, GatewayId, RequestId, ServiceName
from shared.messages import (
    STAGES,
    BlackBox,
    Ledger,
    Orphan,
    Outcome,
    Priority,
    Stage,
    StageBatch,
)

HOLD_S = 2.0
MAX_HELD = 4096
"""Held at the same time, of each kind; beyond it the oldest goes at once."""
MAX_BOXES = 256
GATEWAY_LOST = "gateway_lost"
_BEFORE_ENGINE = STAGES.index(Stage.TOKENIZE)
_TRACE_PARENT_PARTS = 4


class Item(msgspec.Struct, frozen=True, gc=False):
    """A ledger with where it came from."""

    service: ServiceName
    gateway: GatewayId
    ledger: Ledger
    due: float = 0.0
    is_orphan: bool = False


class Holding:
    """Orphans and lost requests, each for at most `HOLD_S`; and the black boxes that were told."""

    def __init__(self) -> None:
        self._orphans: dict[RequestId, Item] = {}
        self._lost: dict[RequestId, Item] = {}
        self._boxes: dict[EngineId, BlackBox] = {}

    def __len__(self) -> int:
        return len(self._orphans) + len(self._lost)

    @property
    def boxes(self) -> Mapping[EngineId, BlackBox]:
        """The black boxes of engines that died lately."""
        return self._boxes

    def ledger(self, item: Item, now: float) -> bool:
        """Take note of a ledger; return whether it waits here for a black box."""
        if self._orphans:
            self._orphans.pop(item.ledger.request, None)
        if all(attempt.engine in self._boxes for attempt in item.ledger.attempts):
            return False
        _keep(self._lost, item, now)
        return True

    def orphans(self, batch: StageBatch, now: float) -> None:
        """Keep the orphans of a batch."""
        for orphan in batch.orphans:
            _keep(self._orphans, orphan_item(batch, orphan), now)

    def box(self, box: BlackBox) -> None:
        """Take note of a black box."""
        self._boxes.pop(box.engine, None)
        if len(self._boxes) >= MAX_BOXES:
            del self._boxes[next(iter(self._boxes))]
        self._boxes[box.engine] = box

    def due(self, now: float, *, all_of_them: bool = False) -> Iterator[Item]:
        """Yield and forget what has waited long enough, and what has all it waited for."""
        for held in (self._orphans, self._lost):
            for request, item in list(held.items()):
                if all_of_them or now >= item.due or self._is_complete(item):
                    del held[request]
                    yield item

    def _is_complete(self, item: Item) -> bool:
        attempts = item.ledger.attempts
        return bool(attempts) and all(attempt.engine in self._boxes for attempt in attempts)


def _keep(held: dict[RequestId, Item], item: Item, now: float) -> None:
    """Hold an item; where there is no room the oldest becomes due at once."""
    if len(held) >= MAX_HELD:
        first = next(iter(held))
        held[first] = msgspec.structs.replace(held[first], due=now)
    held[item.ledger.request] = msgspec.structs.replace(item, due=now + HOLD_S)


def orphan_item(batch: StageBatch, orphan: Orphan) -> Item:
    """Return the ledger that the gateway could not write: what the engine knows, from the submit to the end of its work."""
    spent = orphan.spent
    wall_us = sum(spent.us)
    began_s = batch.unix_s - (batch.at - spent.received_at)
    trace_id, span_id, flags = _parent_of(orphan.trace.get("traceparent", ""))
    ledger = Ledger(
        request=orphan.request,
        began_unix_us=max(0, round(began_s * 1e6)),
        wall_us=wall_us,
        us=[*[0] * _BEFORE_ENGINE, *spent.us, 0],
        outcome=Outcome.FAILED,
        priority=Priority.DEFAULT,
        door="",
        kind="",
        status=0,
        code=GATEWAY_LOST,
        trace_id=trace_id,
        span_id=span_id,
        trace_flags=flags,
        trace_state=orphan.trace.get("tracestate", ""),
        engine=batch.engine,
        cached_tokens=spent.cached_tokens,
        host_tokens=spent.host_tokens,
        disk_tokens=spent.disk_tokens,
        prompt_tokens=spent.cached_tokens + spent.prefill_tokens,
        completion_tokens=spent.decode_tokens,
        prefill_tokens=spent.prefill_tokens,
        recomputed_tokens=spent.recomputed_tokens,
        drafted_tokens=spent.drafted_tokens,
        accepted_tokens=spent.accepted_tokens,
        preemptions=spent.preemptions,
        first_step=spent.first_step,
        last_step=spent.last_step,
        batch_size=spent.batch_size,
        kv_blocks=spent.kv_blocks,
        blocked_by=spent.blocked_by,
        mode=spent.mode,
        mode_changes=spent.mode_changes,
        blocks_us=spent.blocks_us,
        is_estimated=True,
    )
    return Item(batch.service, GatewayId(""), ledger, is_orphan=True)


def _parent_of(traceparent: str) -> tuple[bytes, bytes, int]:
    """Return trace id, span id and flags; the span is the one that the gateway would have written: the root."""
    parts = traceparent.split("-")
    try:
        trace_id, span_id, flags = (bytes.fromhex(part) for part in parts[1:_TRACE_PARENT_PARTS])
    except ValueError:
        return b"", b"", 0
    return trace_id, span_id, flags[0] if flags else 0
