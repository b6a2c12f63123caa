"""CPU cost of the tracer's metrics: microseconds a ledger, and milliseconds a scrape of a busy platform.

Each figure is the fastest of several rounds, since other work on the machine only ever adds time. Prints JSON.

    python bench/request_metrics.py
"""

from __future__ import annotations

import json
import random
import sys
import time
import timeit
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, Histogram, generate_latest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.support.processes import machine  # noqa: E402 - needs the path above
from services.tracer.request_metrics import RequestMetrics  # noqa: E402
from shared.ids import EngineId, GatewayId, ServiceName  # noqa: E402
from shared.latency_bounds import STAGE_S  # noqa: E402
from shared.messages import STAGES, Ledger, LedgerBatch  # noqa: E402
from tests.contract.golden_ledger import LEDGER  # noqa: E402

ENGINES = 8
LEDGERS = 4096
ROUNDS = 7


def ledgers() -> list[Ledger]:
    """Return requests of a few engines with times as they are: some stages long, some short, some none."""
    draw = random.Random(1)
    longest_us = (600, 10_000, 1_400, 3_000, 20_000, 1, 250_000, 3_000_000, 1, 1, 50_000, 8_000)
    return [
        msgspec.structs.replace(
            LEDGER,
            us=[draw.randrange(us) for us in longest_us],
            wall_us=draw.randrange(4_000_000),
            engine=EngineId(f"e{number % ENGINES}"),
            attempts=[],
            blocked_by=[],
        )
        for number in range(LEDGERS)
    ]


def fastest_us(work: Callable[[], object], count: int) -> float:
    """Return CPU microseconds for each of `count` things that `work` does."""
    rounds = timeit.repeat(work, timer=time.process_time, number=1, repeat=ROUNDS)
    return round(min(rounds) / count * 1e6, 2)


def main() -> None:
    """Measure and print."""
    requests = ledgers()
    batch = LedgerBatch(service=ServiceName("s"), gateway=GatewayId("g"), ledgers=requests)
    metrics, registry = RequestMetrics(), CollectorRegistry()
    registry.register(metrics)
    observe_us = fastest_us(lambda: metrics.observe(batch), LEDGERS)
    scrape_us = fastest_us(lambda: generate_latest(registry), 1)

    bounds, counts = [bound * 1e6 for bound in STAGE_S], [[0] * 23 for _ in STAGES]

    def search_each() -> None:
        for one in requests:
            for column, us in zip(counts, one.us, strict=True):
                column[bisect_left(bounds, us)] += 1

    library = Histogram("h", "Text.", ["stage"], buckets=STAGE_S, registry=CollectorRegistry())

    def library_each() -> None:
        for one in requests[:256]:
            for stage, us in zip(STAGES, one.us, strict=True):
                library.labels(stage).observe(us / 1e6)

    report = {
        "machine": machine(),
        "observe_us_per_ledger": observe_us,
        "stages_only_searched_one_by_one_us_per_ledger": fastest_us(search_each, LEDGERS),
        "stages_only_prometheus_client_us_per_ledger": fastest_us(library_each, 256),
        "scrape_ms": round(scrape_us / 1e3, 1),
        "page_lines": generate_latest(registry).count(b"\n"),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
