"""The page of all metrics: names, labels and texts as the collectors in the code give them, without a running process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric

from services.engine.kv_metrics import KvMetrics
from services.engine.metrics import Counts, Snapshot
from services.engine.pool_metrics import PoolMetrics
from services.engine.ports import Load
from services.engine.step_counts import StepCounts
from services.gateway.admission.verdict import AdmissionSettings
from services.gateway.gates import Gates
from services.gateway.metrics import GatewayMetrics
from services.gateway.readings import gateway_readings, http_readings
from services.host.metrics import HostCollector
from services.host.replicas import Replicas
from services.host.room import Room
from services.kvstore.metrics import StoreCollector
from services.kvstore.settings import KvStoreSettings
from services.kvstore.store import Store
from services.operator.counts import Counts as OperatorCounts
from services.operator.metrics import OperatorCollector
from services.tracer.metrics import TracerCollector, TracerCounts
from services.tracer.outbox import Outbox, OutboxSettings
from services.tracer.request_metrics import (
    IDLE_S,
    MAX_ENGINES,
    MAX_SERVICES,
    MAX_VERSIONS,
    OTHER,
    RequestMetrics,
)
from services.tracer.restraint import Restraint
from shared.latency_bounds import EACH_S, FIRST_S, STAGE_S, WHOLE_S
from shared.messages import EngineHeartbeat, EngineState
from shared.metric_aliases import ALIASES
from shared.metrics import BusCollector

OF_ENGINE = ("service", "version", "engine")
HEAD = """# Metrics

Six kinds of process serve `GET /metrics` in Prometheus's text format:
gateways (also on the port of the HTTP API), engines, tracers, KV stores, operators and hosts.
How to scrape them: [Prometheus](../how-to/prometheus.md).

| page | setting | with `headrace up` |
|---|---|---|
| gateway | `/metrics` of the HTTP API; `metrics_port` for a page of its own | a free port, see `prometheus.yml` in the platform's folder |
| engine | `metrics_port` | a free port, see there |
| tracer | `metrics_port` | `--metrics-port`, 9103 |
| KV store | `metrics_port` | a free port, see there |
| operator | `metrics_port` | a free port, see there |
| host | `metrics_port` | a free port, see there; its engines' pages are in `engines.json` |

Metrics of requests come from the ledger, one entry of each request whatever became of it. Several tracers share the entries: sum over them.
"""
LABELS = f"""## Labels

Tenants, request ids and texts are never labels. Those whose values come from outside are bounded on a tracer's page:
`service` has at most {MAX_SERVICES} values, `version` {MAX_VERSIONS}, `engine` {MAX_ENGINES} (lives of processes, not machines).
Where one is full, series to which nothing was added for {IDLE_S / 3600:g} h end and make room; while all are in use, a new value counts as `{OTHER}`.

| label | values |
|---|---|
| `class` | `interactive`, `default`, `batch` |
| `stage` | the [twelve](messages.md) |
| `outcome` | how a request ended (`Ledger.outcome`) |
| `status` | hundreds of the HTTP status, as `5xx`; on the gateway's page the status |
| `evidence` | `good`, `bad`, or `none`: what an objective makes of the request. Leaving, deadlines of the caller's own and requests at fault are `none` |
| `band` | `p50`: the middle half of the last 1,024 requests of a service and class by their duration; `p95`, `p99`: those beyond |
| `kind` | of a job of the KV store: `load`, `save` |
| `mirror` | number of a KV store's folder, 0 or 1 |
| `trouble` | why a mirror is not in order (`MirrorPicture.trouble`) |
| `tier` | where KV blocks were: `l1`, the engine's own pool; `l2`, host memory; `l3`, disk |
"""  # noqa: E501 - a row of a table is one line
BOUNDS = f"""## Bounds of the histograms

In seconds. Those of stages are powers of two, as native histograms have them; the others are those that OTel's conventions for GenAI
servers advise, and the round numbers that objectives are stated in.

| of | bounds |
|---|---|
| stages | {STAGE_S[0]:.3g} to {STAGE_S[-1]:g}, by factors of 2 |
| whole requests | {", ".join(f"{each:g}" for each in WHOLE_S)} |
| first tokens | {", ".join(f"{each:g}" for each in FIRST_S)} |
| further tokens | {", ".join(f"{each:g}" for each in EACH_S)} |
"""


def metrics_page(made: str) -> str:
    """Return the whole page; `made` says by what it is made."""
    parts = [made, HEAD, _aliases(), LABELS, BOUNDS]
    for title, labels, families in (
        ("Requests (tracer)", (), RequestMetrics().collect()),
        ("Tracers", (), _of_tracer()),
        ("Engines", OF_ENGINE, _of_engine()),
        ("Gateways", (), _of_gateway()),
        ("KV stores", (), _of_kv_store()),
        ("Operators", (), OperatorCollector(_QuietOperator()).collect()),
        ("Hosts", (), HostCollector(Replicas(Room())).collect()),
        ("Every process", (), BusCollector(_Anything()).collect()),
    ):
        parts.append(_table(title, labels, families))
    return "\n".join(parts)


def _aliases() -> str:
    lines = [
        "## Names that runbooks know",
        "",
        "They have the values and the labels of the metric beside them, at each scrape.",
        "",
        "| name | is | page | meaning | mind |",
        "|---|---|---|---|---|",
    ]
    for alias in ALIASES:
        further = "".join(
            f" `{label}` is a copy of `{source}`." for label, source in alias.copies.items()
        )
        lines.append(
            f"| `{alias.name}` | `{alias.source}` | {alias.page} | {alias.meaning} | {alias.caveat}{further} |"
        )
    return "\n".join([*lines, ""])


def _table(title: str, labels: tuple[str, ...], families: Iterable[Metric]) -> str:
    lines = [f"## {title}", ""]
    if labels:
        lines += ["All with the labels " + ", ".join(f"`{label}`" for label in labels) + ".", ""]
    lines += ["| name | type | labels | |", "|---|---|---|---|"]
    seen: set[str] = set()
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        if name in seen or name in {alias.name for alias in ALIASES}:
            continue
        seen.add(name)
        own = ", ".join(f"`{label}`" for label in _labels(family))
        lines.append(f"| `{name}` | {family.type} | {own} | {family.documentation} |")
    return "\n".join([*lines, ""])


def _labels(family: Metric) -> tuple[str, ...]:
    """Return the names of a family's labels: as declared, or of its samples."""
    declared: tuple[str, ...] = getattr(family, "_labelnames", ())
    named = declared or tuple(family.samples[0].labels if family.samples else ())
    return tuple(label for label in named if label != "le")


def _of_tracer() -> Iterator[Metric]:
    settings = OutboxSettings()
    yield from TracerCollector(TracerCounts(), Outbox(settings), Restraint()).collect()


def _of_kv_store() -> Iterator[Metric]:
    async def families() -> list[Metric]:
        settings = KvStoreSettings(folders=("/kv",), socket="/kv.sock")
        store = Store(settings, name="")
        found = list(StoreCollector(store).collect())
        store.rebuilder.close()
        return found

    yield from asyncio.run(families())


def _of_engine() -> Iterator[Metric]:
    beat = EngineHeartbeat(engine="", service="", beat=0, state=EngineState.READY, backend="fake")
    snapshot = Snapshot(
        Counts(),
        heartbeat=lambda: beat,
        tokens=lambda: 0,
        ring_bytes=lambda: 0,
        steps=StepCounts(),
        mode_changes=lambda: 0,
    )
    yield from itertools.chain(
        snapshot.collect(),
        PoolMetrics(lambda: None, Load).collect(),
        KvMetrics(StepCounts()).collect(),
    )


def _of_gateway() -> Iterator[Metric]:
    metrics = GatewayMetrics()
    metrics.watch_gates(Gates(AdmissionSettings()))
    yield from (f for f in metrics.registry.collect() if f.name.startswith("headrace_gateway"))
    for reading in (*gateway_readings(_Anything()), *http_readings(_Anything())):
        family = Metric(
            f"headrace_gateway_{reading.name}",
            reading.text,
            "counter" if reading.is_total else "gauge",
        )
        family.add_sample(family.name, reading.labels, 0)
        yield family


class _Anything:
    """Stands for parts of a process that nobody looks at while only names are wanted."""

    def __getattr__(self, name: str) -> _Anything:
        return self

    def __float__(self) -> float:
        return 0.0


class _QuietOperator(_Anything):
    """An operator that has done nothing yet."""

    leads = False
    counts = OperatorCounts()
    status = None
    services = None
