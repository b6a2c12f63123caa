"""What moved between the KV tiers, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from services.engine.kv_metrics import KvMetrics
from services.engine.step_counts import StepCounts
from services.engine.steps.step import KvMoves, Prefill, Step


def lines_of(*steps: Step) -> list[str]:
    counts = StepCounts()
    for step in steps:
        counts.step(step)
    registry = CollectorRegistry()
    registry.register(KvMetrics(counts))
    return generate_latest(registry).decode().splitlines()


def test_tokens_count_for_the_tier_their_blocks_came_from():
    lines = lines_of(Step(1, 1.0, 1.5, prefills=[Prefill("a", 10, cached=100, host=30, disk=20)]))

    for tier, tokens in (("l1", 50.0), ("l2", 30.0), ("l3", 20.0)):
        assert f'llm_engine_tier_tokens_total{{tier="{tier}"}} {tokens}' in lines


def test_moves_add_up_and_the_state_is_the_last_one():
    lines = lines_of(
        Step(1, 1.0, 1.5, kv=KvMoves(1, 2, 3, 4, 5, 6, 7, aside=8, disk_blocks=9)),
        Step(2, 1.5, 1.6, kv=KvMoves(10, 20, 30, 40, 50, 60, 70, aside=0, disk_blocks=3)),
        Step(3, 1.6, 1.7),
    )

    for line in (
        'llm_engine_kv_moved_bytes_total{source="l1",target="l2"} 11.0',
        'llm_engine_kv_moved_bytes_total{source="l2",target="l1"} 22.0',
        'llm_engine_kv_moved_bytes_total{source="l2",target="l3"} 33.0',
        'llm_engine_kv_moved_bytes_total{source="l3",target="l2"} 44.0',
        "llm_engine_kv_failed_bytes_total 55.0",
        "llm_engine_kv_dropped_bytes_total 66.0",
        "llm_engine_kv_given_up_loads_total 77.0",
        "llm_engine_kv_aside_bytes 0.0",
        "llm_engine_kv_store_up 1.0",
        "llm_engine_kv_disk_blocks 3.0",
    ):
        assert line in lines, line


def test_without_a_store_none_is_up():
    assert "llm_engine_kv_store_up 0.0" in lines_of(Step(1, 1.0, 1.5))
