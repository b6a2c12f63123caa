"""A request that was found in the ledgers: which one an id means, and what of it is told to other programs as JSON. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from services.console.plain import cleaned
from shared.ids import GatewayId, ServiceName
from shared.messages import STAGES, Attempt, ChoiceRecord, Ledger, LedgerBatch

MAX_CANDIDATES = 20
"""More requests that an id may mean are not listed."""


class Found(msgspec.Struct, frozen=True):
    """A ledger and where it came from."""

    service: ServiceName
    gateway: GatewayId
    ledger: Ledger

    @property
    def began(self) -> datetime:
        """When the first byte came, in UTC."""
        return datetime.fromtimestamp(self.ledger.began_unix_us / 1e6, tz=UTC)

    @property
    def ended_unix_us(self) -> int:
        """When the last byte had gone out."""
        return self.ledger.began_unix_us + self.ledger.wall_us

    @property
    def token_us(self) -> float | None:
        """Mean time of a token after the first; None where there is none."""
        one = self.ledger
        tokens = max((choice.tokens for choice in one.choices), default=one.completion_tokens)
        if tokens <= 1 or not one.ttft_us:
            return None
        return max(0, one.wall_us - one.ttft_us - one.us[-1]) / (tokens - 1)


def founds(batch: LedgerBatch) -> list[Found]:
    """Return the requests of a message, in its order; their texts are each one line."""
    gateway = cleaned(batch.gateway)
    return [
        Found(batch.service, gateway, ledger if _is_plain(ledger) else cleaned(ledger))
        for ledger in batch.ledgers
    ]


def _is_plain(one: Ledger) -> bool:
    """Return whether no text of a ledger needs to be cleaned; ten times as quick as to clean it."""
    if one.attempts or one.blocked_by:
        return False
    finishes = "".join([choice.finish for choice in one.choices])
    return (
        f"{one.request}{one.code}{one.tenant}{one.label}{one.door}{one.kind}{finishes}".isprintable()
        and f"{one.engine}{one.version}{one.backend}{one.zone}{one.mode}".isprintable()
    )


class Search:
    """Looks for the request that somebody means by an id: ours, the caller's, that of its trace, or the beginning of one of these.

    A whole id of ours ends the search. A caller may have used its id, or its trace, for several requests.
    """

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted.strip()
        self.hit: Found | None = None
        """The request whose own id this is."""
        self._whole: list[Found] = []
        self._beginnings: list[Found] = []

    def look(self, batch: LedgerBatch) -> bool:
        """Take a message; return whether the search is over."""
        for found in founds(batch):
            one = found.ledger
            if one.request == self.wanted:
                self.hit = found
                return True
            names = (one.label, one.trace_id.hex())
            if self.wanted in names:
                _keep(self._whole, found)
            elif any(
                name.startswith(self.wanted)
                for name in (one.request, one.request.partition("-")[2], *names)
            ):
                _keep(self._beginnings, found)
        return False

    @property
    def candidates(self) -> list[Found]:
        """What the id may mean; one: that is it. At most twenty."""
        if self.hit is not None:
            return [self.hit]
        return self._whole or self._beginnings


def _keep(found: list[Found], one: Found) -> None:
    if len(found) < MAX_CANDIDATES and all(
        one.ledger.request != other.ledger.request for other in found
    ):
        found.append(one)


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request for other programs: ids as hexadecimal text, times in milliseconds."""

    request: str
    service: str
    gateway: str
    began: str
    """RFC 3339, UTC."""
    outcome: str
    status: int
    wall_ms: float
    ttft_ms: float
    stages_ms: dict[str, float]
    priority: str
    door: str
    kind: str
    code: str = ""
    tenant: str = ""
    label: str = ""
    trace_id: str = ""
    is_streamed: bool = False
    engine: str = ""
    version: str = ""
    attempts: list[dict[str, object]] = []
    choices: list[dict[str, object]] = []
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    expected_cached_tokens: int = 0
    route: str = ""
    host_tokens: int = 0
    disk_tokens: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    first_step: int = 0
    last_step: int = 0
    batch_size: float = 0.0
    kv_blocks: int = 0
    blocked_by_ms: dict[str, float] = {}
    mode: str = ""
    mode_changes: int = 0
    is_estimated: bool = False
    longest_pause_ms: float = 0.0
    queued_for_blocks_ms: float = 0.0


SAME = (
    *("status", "code", "tenant", "label", "door", "kind", "is_streamed", "engine", "version"),
    *("prompt_tokens", "completion_tokens", "cached_tokens", "host_tokens", "disk_tokens"),
    *("prefill_tokens", "recomputed_tokens"),
    *("drafted_tokens", "accepted_tokens", "preemptions", "first_step", "last_step"),
    *("batch_size", "kv_blocks", "mode", "mode_changes", "is_estimated"),
    *("route", "expected_cached_tokens"),
)
"""What a ledger and `Told` call by the same name and write the same way."""


def told(found: Found) -> Told:
    """Return the request for other programs."""
    one = found.ledger
    return Told(
        request=one.request,
        service=found.service,
        gateway=found.gateway,
        began=found.began.isoformat(timespec="microseconds"),
        outcome=one.outcome,
        priority=one.priority,
        wall_ms=one.wall_us / 1e3,
        ttft_ms=one.ttft_us / 1e3,
        stages_ms={stage: us / 1e3 for stage, us in zip(STAGES, one.us, strict=True)},
        trace_id=one.trace_id.hex(),
        attempts=[_attempt(attempt) for attempt in one.attempts],
        choices=[_choice(choice) for choice in one.choices],
        blocked_by_ms={blocker.request: blocker.us / 1e3 for blocker in one.blocked_by},
        longest_pause_ms=one.max_token_gap_us / 1e3,
        queued_for_blocks_ms=one.blocks_us / 1e3,
        **{name: getattr(one, name) for name in SAME},
    )


def _attempt(attempt: Attempt) -> dict[str, object]:
    lasted_ms = attempt.us / 1e3
    return {"engine": attempt.engine, "why": attempt.why, "ms": lasted_ms, "way": attempt.way}


def _choice(choice: ChoiceRecord) -> dict[str, object]:
    return {"index": choice.index, "tokens": choice.tokens, "finish": choice.finish}
