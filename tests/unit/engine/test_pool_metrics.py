"""The pool's figures at a scrape: those that the backend tells, and no others."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from services.engine.metrics import PREFIX
from services.engine.pool_metrics import PoolMetrics, fragmentation
from services.engine.ports import Limits, Load


def limits(**sizes: int) -> Limits:
    return Limits(backend="fake", model="m", version="1", max_model_len=100, max_streams=4, **sizes)


def values(limits: Limits | None, load: Load) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(PoolMetrics(lambda: limits, lambda: load))
    lines = generate_latest(registry).decode().splitlines()
    return {
        name.removeprefix(PREFIX): float(value)
        for name, value in (line.split() for line in lines if not line.startswith("#"))
    }


def test_all_that_a_backend_tells():
    load = Load(free_blocks=40, free_runs=3, largest_free_run=30)

    found = values(limits(total_blocks=100, block_tokens=16, block_bytes=4096), load)

    assert found == {
        "total_blocks": 100,
        "free_blocks": 40,
        "block_tokens": 16,
        "block_bytes": 4096,
        "free_runs": 3,
        "largest_free_run": 30,
        "fragmentation_ratio": 0.25,
    }


def test_what_is_promised_and_kept_shows_where_blocks_are_promised():
    load = Load(free_blocks=40, promised_blocks=10, reserved_blocks=25, waiting=5, blocked=3)

    found = values(limits(total_blocks=100), load)

    assert (10, 25, 3) == (
        found["promised_blocks"],
        found["reserved_blocks"],
        found["waiting_for_blocks"],
    )


def test_a_full_pool_has_values():
    load = Load(free_blocks=0, free_runs=0, largest_free_run=0)

    found = values(limits(total_blocks=100), load)

    assert (0, 0, 0) == (
        found["free_blocks"],
        found["largest_free_run"],
        found["fragmentation_ratio"],
    )


@pytest.mark.parametrize("known", [None, limits()], ids=["not started", "has no pool"])
def test_what_is_not_known_has_no_value(known):
    assert {} == values(known, Load())


@pytest.mark.parametrize(
    ("free", "largest", "ratio"),
    [(10, 10, 0.0), (10, 1, 0.9), (0, 0, 0.0), (8, 10, 0.0), (10, None, None)],
)
def test_fragmentation(free, largest, ratio):
    assert ratio == fragmentation(Load(free_blocks=free, largest_free_run=largest))
