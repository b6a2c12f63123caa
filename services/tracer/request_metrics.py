"""The metrics that are made of ledgers and of engines' stage batches, for Prometheus. Observing costs a few µs; names are made at a scrape.

Labels have few values by construction. Tenants, request ids and texts never become one. `service`, `version` and `engine` come from
outside, so each has a bound: when it is reached, those of whom nothing was heard for `IDLE_S` make room (their series end), and while
all are in use a new one counts under the value `other`.
Counts are of what this tracer has seen. Stage batches may be lost on the way, ledgers are kept by the bus: accounts come from ledgers.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from services.tracer.blame_bands import BlameBands
from services.tracer.request_counts import RequestCounts
from services.tracer.request_families import (
    Key,
    StepTotals,
    blame_families,
    request_families,
    step_families,
)
from shared.ids import EngineId, ServiceName
from shared.messages import Ledger, LedgerBatch, Outcome, Priority, StageBatch

OTHER = "other"
MAX_SERVICES = 50
MAX_VERSIONS = 100
"""Over all services."""
MAX_ENGINES = 200
"""Process lives, not machines: a restarted engine is a new one."""
MAX_GROUPS = 2000
"""Services, versions, engines and classes in their combinations: each is a few dozen series."""
IDLE_S = 3600.0
"""A series that nobody adds to any more is kept for so long at least, so that a scrape each minute cannot miss its end."""
FORGET_US = 60_000_000
"""Between two looks for idle ones: a flood of names must not make each request pay for one."""
_MAX_FOUND = 4096

_FINISHED, _EXPIRED = Outcome.FINISHED, Outcome.EXPIRED


class RequestMetrics(Collector):
    """Takes batches, gives families. One owner; not for several threads."""

    def __init__(self) -> None:
        self._counts: dict[Key, RequestCounts] = {}
        self._bands: dict[tuple[str, Priority], BlameBands] = {}
        self._found: dict[tuple[str, str, str, str], tuple[RequestCounts, BlameBands]] = {}
        """By what ledgers say, the class as a plain string; several share their counts where a label is full."""
        self._steps: dict[tuple[str, str], StepTotals] = {}
        self._unix_us = 0
        self._forgot_us = 0

    @override
    def __repr__(self) -> str:
        return f"<RequestMetrics {len(self._counts)} groups, {len(self._steps)} engines>"

    def observe(self, batch: LedgerBatch) -> None:
        """Count the requests of a batch; twice the same counts twice."""
        service, found = batch.service, self._found
        for ledger in batch.ledgers:
            # An enum's member takes ten times as long to hash as its value.
            entry = found.get((service, ledger.version, ledger.engine, ledger.priority._value_))
            counts, bands = entry or self._admit(service, ledger)
            counts.observe(ledger)
            if ledger.outcome is _FINISHED or ledger.outcome is _EXPIRED:
                bands.observe(ledger.wall_us, ledger.us)

    def observe_stages(self, batch: StageBatch) -> None:
        """Add an engine's steps."""
        unix_us = int(batch.unix_s * 1e6)
        self._unix_us = max(self._unix_us, unix_us)
        key = self._bounded_engine(batch.service, batch.engine)
        totals = self._steps.get(key)
        if totals is None:
            totals = self._steps[key] = StepTotals()
        totals.add(batch.steps, dropped=batch.dropped, unix_us=unix_us)

    @override
    def collect(self) -> Iterable[Metric]:
        for counts in self._counts.values():
            counts.settle()
        for bands in self._bands.values():
            bands.settle()
        yield from request_families(self._counts)
        yield from blame_families(self._bands)
        yield from step_families(self._steps)

    # --- bounds

    def _admit(self, service: str, ledger: Ledger) -> tuple[RequestCounts, BlameBands]:
        """Return where to count a request whose like was not seen lately."""
        self._unix_us = max(self._unix_us, ledger.began_unix_us + ledger.wall_us)
        if len(self._found) >= _MAX_FOUND:
            self._found.clear()
        priority = ledger.priority
        own = self._within_bounds((service, ledger.version, ledger.engine, priority))
        counts = self._counts.setdefault(own, RequestCounts())
        bands = self._bands.setdefault((own[0], priority), BlameBands())
        self._found[service, ledger.version, ledger.engine, priority.value] = counts, bands
        return counts, bands

    def _within_bounds(self, key: Key) -> Key:
        service, version, engine, priority = key
        if self._is_full(key):
            self._forget_idle()
        if key not in self._counts and len(self._counts) >= MAX_GROUPS:
            return OTHER, OTHER, OTHER, priority
        services, versions, engines = self._values()
        return (
            _bounded(service, services, MAX_SERVICES),
            _bounded(version, versions, MAX_VERSIONS),
            _bounded(engine, engines, MAX_ENGINES),
            priority,
        )

    def _values(self) -> tuple[set[str], set[str], set[str]]:
        keys = self._counts
        return {k[0] for k in keys}, {k[1] for k in keys}, {k[2] for k in keys}

    def _is_full(self, key: Key) -> bool:
        if key not in self._counts and len(self._counts) >= MAX_GROUPS:
            return True
        bounds = MAX_SERVICES, MAX_VERSIONS, MAX_ENGINES
        return any(
            value not in values and len(values) >= most
            for value, values, most in zip(key, self._values(), bounds, strict=False)
        )

    def _forget_idle(self) -> None:
        if self._unix_us - self._forgot_us < FORGET_US:
            return
        self._forgot_us = self._unix_us
        oldest = self._unix_us - int(IDLE_S * 1e6)
        self._counts = {
            key: counts for key, counts in self._counts.items() if counts.last_us >= oldest
        }
        self._found.clear()
        services = {key[0] for key in self._counts}
        self._bands = {key: bands for key, bands in self._bands.items() if key[0] in services}

    def _bounded_engine(self, service: ServiceName, engine: EngineId) -> tuple[str, str]:
        if (service, engine) in self._steps or len(self._steps) < MAX_ENGINES:
            return service, engine
        oldest = self._unix_us - int(IDLE_S * 1e6)
        self._steps = {key: steps for key, steps in self._steps.items() if steps.last_us >= oldest}
        return (service, engine) if len(self._steps) < MAX_ENGINES else (OTHER, OTHER)


def _bounded(value: str, known: set[str], most: int) -> str:
    return value if value in known or len(known) < most else OTHER
