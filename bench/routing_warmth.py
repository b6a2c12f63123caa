"""Hit rate, time to the first token and bytes between zones under a recorded trace: routing by warmth against the policies of peers.

Engines are simulated, router and books of warmth are the real ones (`tests/support/warm_fleet.py`); virtual time, half a minute a
policy for the whole trace. The trace is Mooncake's as CSV: `timestamp_s,prompt_tokens,output_tokens,hash_ids`, gzipped.
Prints a table to stderr and JSON to stdout.

    python bench/routing_warmth.py TRACE.csv.gz [--rows 12031] [--pool-blocks 4800] [--prefill 8000]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.support.processes import machine  # noqa: E402 - needs the path above
from services.gateway.routing import RoutingSettings  # noqa: E402
from tests.support.warm_fleet import (  # noqa: E402
    BLOCK_TOKENS,
    COLD,
    Asked,
    Fleet,
    Model,
    Pick,
    prefix_hash,
    read_trace,
    round_robin,
    routed,
)

POLICIES: dict[str, tuple[Pick, RoutingSettings]] = {
    "round robin": (round_robin, COLD),
    "least load": (routed, COLD),
    "prefix hash, bounded load": (prefix_hash, COLD),
    "warmth": (routed, RoutingSettings(far_tokens_per_kb=0.0)),
    "warmth and zones": (routed, RoutingSettings()),
}
FLEETS: dict[str, dict[str, int]] = {
    "8 engines, 2 gateways": {"engines": 8, "gateways": 2},
    "3 zones of 3 engines and a gateway": {"engines": 9, "gateways": 3, "zones": 3},
}


def one_pool(trace: Sequence[Asked], blocks: int) -> float:
    """Return the hit rate of one pool as large as all together, with nothing in it pinned: what routing cannot exceed by much."""
    pool: OrderedDict[int, None] = OrderedDict()
    found = tokens = 0
    for asked in trace:
        count = 0
        for block in asked.blocks:
            if block not in pool:
                break
            count += 1
        for block in reversed(asked.blocks):
            pool[block] = None
            pool.move_to_end(block)
        while len(pool) > blocks:
            pool.popitem(last=False)
        found += min(count * BLOCK_TOKENS, asked.prompt_tokens - 1)
        tokens += asked.prompt_tokens
    return found / tokens


def measure(trace: Sequence[Asked], model: Model) -> list[dict[str, Any]]:
    """Play the trace under each policy in each fleet."""
    rows = []
    for fleet_name, shape in FLEETS.items():
        for name, (pick, settings) in POLICIES.items():
            if name == "warmth and zones" and "zones" not in shape:
                continue
            began = time.monotonic()
            result = Fleet(model=model, settings=settings, **shape).run(trace, pick)
            rows.append(
                {
                    "fleet": fleet_name,
                    "policy": name,
                    "hit_rate": round(result.cached_tokens / result.prompt_tokens, 4),
                    "ttft_p50_s": round(result.quantile(0.5), 3),
                    "ttft_p95_s": round(result.quantile(0.95), 3),
                    "ttft_p99_s": round(result.quantile(0.99), 3),
                    "cross_zone_share": round(result.cross_bytes / result.all_bytes, 4),
                    "decided_by_warmth": result.warm,
                    "busiest_to_idlest": round(max(result.counts) / max(1, min(result.counts)), 2),
                    "took_s": round(time.monotonic() - began, 1),
                }
            )
            show(rows[-1])
    return rows


def show(row: dict[str, Any]) -> None:
    """Print a line of the table."""
    sys.stderr.write(
        f"{row['fleet']:36} {row['policy']:27} hit {row['hit_rate']:6.1%}"
        f"  ttft p50 {row['ttft_p50_s']:7.3f} p95 {row['ttft_p95_s']:7.3f} p99 {row['ttft_p99_s']:7.3f}"
        f"  across {row['cross_zone_share']:6.1%}  warm {row['decided_by_warmth']}\n"
    )


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--pool-blocks", type=int, default=4800, help="of 512 tokens, an engine")
    parser.add_argument("--prefill", type=float, default=8000.0, help="tokens/s of an engine")
    options = parser.parse_args()
    trace = read_trace(options.trace, rows=options.rows)
    model = Model(prefill_tokens_per_s=options.prefill, pool_blocks=options.pool_blocks)
    bound = one_pool(trace, options.pool_blocks * 8)
    sys.stderr.write(f"{len(trace)} requests; one pool of 8 engines' size would hit {bound:.1%}\n")
    report = {
        "machine": machine("msgspec", "xxhash"),
        "requests": len(trace),
        "model": model._asdict(),
        "one_pool_hit_rate": round(bound, 4),
        "rows": measure(trace, model),
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
