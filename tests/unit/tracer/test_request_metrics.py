"""The metrics that are made of ledgers and steps: values, labels, bounds of cardinality."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.samples import Sample

from services.tracer import request_metrics
from services.tracer.request_metrics import MAX_ENGINES, MAX_GROUPS, OTHER, RequestMetrics
from shared.ids import EngineId, GatewayId, ServiceName
from shared.messages import (
    STAGES,
    Attempt,
    Ledger,
    LedgerBatch,
    Outcome,
    Priority,
    StageBatch,
    StepSummary,
)
from shared.spread import SETTLE
from tests.contract.golden_ledger import LEDGER, LEDGER_SAMPLES

GATEWAY = GatewayId("g1")


def ledger(**changes: object) -> Ledger:
    return msgspec.structs.replace(LEDGER, **changes)


def batch(*ledgers: Ledger, service: str = "s") -> LedgerBatch:
    return LedgerBatch(service=ServiceName(service), gateway=GATEWAY, ledgers=list(ledgers))


Seen = RequestMetrics | list[Sample]
"""What is looked into: all samples once, or anew."""


def scraped(metrics: RequestMetrics) -> list[Sample]:
    return [s for family in metrics.collect() for s in family.samples]


def samples(metrics: Seen, name: str) -> list[Sample]:
    seen = scraped(metrics) if isinstance(metrics, RequestMetrics) else metrics
    return [s for s in seen if s.name == name]


def value(metrics: Seen, name: str, **labels: str) -> float:
    """Return the sum over the series that have these labels."""
    found = [s.value for s in samples(metrics, name) if labels.items() <= s.labels.items()]
    assert found, f"no {name} with {labels}"
    return sum(found)


def test_a_ledger_is_in_every_family_that_it_concerns():
    metrics = RequestMetrics()
    metrics.observe(batch(LEDGER))
    own = {"service": "s", "version": "1", "class": "interactive"}
    at = {**own, "engine": LEDGER.engine}
    gen_ai = {
        "gen_ai_operation_name": "chat",
        "gen_ai_provider_name": "headrace",
        "gen_ai_request_model": "s",
    }

    for stage, us in zip(STAGES, LEDGER.us, strict=True):
        name = "headrace_stage_duration_seconds"
        assert us / 1e6 == value(metrics, f"{name}_sum", **own, stage=stage)
        assert 1 == value(metrics, f"{name}_count", **own, stage=stage)
        assert us / 1e6 == value(
            metrics, "headrace_stage_seconds_total", engine=LEDGER.engine, stage=stage
        )
    for name, labels, wanted in (
        ("gen_ai_server_request_duration_seconds_sum", {**own, **gen_ai, "error_type": ""}, 4.56),
        ("gen_ai_server_time_to_first_token_seconds_sum", {**at, **gen_ai}, 0.29),
        ("gen_ai_server_time_per_output_token_seconds_sum", {**at, **gen_ai}, 4.27 / 199),
        ("headrace_longest_token_gap_seconds_sum", own, 1.1),
        ("headrace_requests_total", {**at, "outcome": "finished", "status": "2xx"}, 1),
        ("headrace_requests_total", {"evidence": "good"}, 1),
        ("headrace_request_tokens_total", {**own, "direction": "in"}, 1_028),
        ("headrace_request_tokens_total", {**own, "direction": "out"}, 200),
        ("headrace_cached_tokens_total", {**own, "tier": "l1"}, 64),
        ("headrace_cached_tokens_total", {**own, "tier": "l2"}, 48),
        ("headrace_cached_tokens_total", {**own, "tier": "l3"}, 16),
        ("headrace_prefill_tokens_total", own, 900),
        ("headrace_recomputed_tokens_total", own, 64),
        ("headrace_drafted_tokens_total", own, 90),
        ("headrace_accepted_tokens_total", own, 40),
        ("headrace_preemptions_total", own, 1),
        ("headrace_blocked_seconds_total", own, 1.2),
        ("headrace_lost_attempts_total", {**own, "way": "resume"}, 1),
    ):
        assert wanted == pytest.approx(value(metrics, name, **labels)), name


def test_only_answers_count_as_latency_and_only_engines_stages_where_one_had_the_request():
    metrics = RequestMetrics()
    refused = ledger(
        outcome=Outcome.REFUSED,
        status=503,
        engine=EngineId(""),
        us=[200, 900, *[0] * 10],
        attempts=[],
    )
    metrics.observe(batch(refused, ledger(outcome=Outcome.LEFT)))

    assert [] == samples(metrics, "gen_ai_server_time_to_first_token_seconds_count")
    assert 1 == value(metrics, "gen_ai_server_request_duration_seconds_count", error_type="refused")
    assert 1 == value(metrics, "headrace_requests_total", outcome="refused", status="5xx")
    counts = {
        stage: value(metrics, "headrace_stage_duration_seconds_count", stage=stage)
        for stage in ("admit", "decode", "kv_load")
    }
    assert {"admit": 2, "decode": 1, "kv_load": 1} == counts


def test_choices_share_the_tokens_of_a_request():
    metrics = RequestMetrics()
    metrics.observe(batch(ledger(choices=LEDGER.choices * 2, ttft_us=560_000, wall_us=4_560_000)))

    each = value(metrics, "gen_ai_server_time_per_output_token_seconds_sum")

    assert 4.0 / 99 == pytest.approx(each)


def test_many_requests_are_all_counted():
    metrics = RequestMetrics()
    count = 2 * SETTLE + 7
    metrics.observe(batch(*[LEDGER] * count))

    decode = value(metrics, "headrace_stage_duration_seconds_count", stage="decode")

    assert count == decode
    assert count == value(metrics, "headrace_requests_total")
    assert count == value(metrics, "gen_ai_server_request_duration_seconds_count")


def test_the_slowest_have_a_band():
    metrics = RequestMetrics()
    slow = ledger(wall_us=60_000_000, us=[*LEDGER.us[:8], 56_740_000, *LEDGER.us[9:]])
    metrics.observe(batch(*[LEDGER] * 400, slow, *[LEDGER] * 400))

    waited = value(metrics, "headrace_blame_stage_seconds_total", band="p99", stage="decode_wait")

    assert 56.74 == waited
    assert 1 == value(metrics, "headrace_blame_requests_total", band="p99")
    assert 4.56 == value(metrics, "headrace_blame_from_seconds", band="p50")


def test_steps_add_up_by_engine():
    metrics = RequestMetrics()
    steps = StepSummary(steps=3, busy_us=90_000, wait_us=40_000, largest_batch=7)
    news = StageBatch(
        service=ServiceName("s"),
        engine=EngineId("e"),
        at=1.0,
        unix_s=LEDGER.began_unix_us / 1e6,
        moves=[],
        steps=steps,
        dropped=2,
    )
    metrics.observe_stages(news)
    metrics.observe_stages(news)
    own = {"service": "s", "engine": "e"}

    assert 6 == value(metrics, "headrace_engine_observed_steps_total", **own)
    assert 0.18 == value(metrics, "headrace_engine_busy_seconds_total", **own)
    assert 0.08 == value(metrics, "headrace_engine_wait_seconds_total", **own)
    assert 4 == value(metrics, "headrace_engine_dropped_moves_total", **own)
    assert 7 == value(metrics, "headrace_engine_batch_size", **own)


def engines(metrics: Seen) -> set[str]:
    return {s.labels["engine"] for s in samples(metrics, "headrace_requests_total")}


def test_engines_in_use_fill_their_label_and_the_rest_is_other():
    metrics = RequestMetrics()
    many = [ledger(engine=EngineId(f"e{number}")) for number in range(MAX_ENGINES + 30)]
    metrics.observe(batch(*many))
    metrics.observe(batch(*many))

    seen = scraped(metrics)

    assert MAX_ENGINES + 1 == len(engines(seen))
    assert 60 == value(seen, "headrace_requests_total", engine=OTHER)
    assert 2 * len(many) == value(seen, "headrace_requests_total")


def test_engines_that_are_gone_make_room():
    metrics = RequestMetrics()
    hours = 3600 * 1_000_000
    for life in range(3):
        began = LEDGER.began_unix_us + 2 * life * hours
        names = [EngineId(f"e{life}-{number}") for number in range(MAX_ENGINES)]
        metrics.observe(batch(*[ledger(engine=name, began_unix_us=began) for name in names]))

    assert {f"e2-{number}" for number in range(MAX_ENGINES)} == engines(metrics)


def test_combinations_are_bounded_as_well():
    metrics = RequestMetrics()
    for number in range(2 * MAX_GROUPS):
        one = ledger(version=f"v{number % 90}", engine=EngineId(f"e{number // 90}"))
        metrics.observe(batch(one, service=f"s{number % 40}"))

    rows = samples(metrics, "headrace_request_tokens_total")
    assert len(rows) <= 2 * (MAX_GROUPS + len(Priority))
    assert 2 * MAX_GROUPS == value(metrics, "headrace_requests_total")


@pytest.mark.parametrize("label", ["service", "version"])
def test_services_and_versions_are_bounded(label: str):
    metrics = RequestMetrics()
    for number in range(300):
        name = f"x{number}"
        one = ledger(version=name) if label == "version" else LEDGER
        metrics.observe(batch(one, service=name if label == "service" else "s"))
        metrics.observe_stages(
            StageBatch(
                service=ServiceName(name),
                engine=EngineId(name),
                at=1.0,
                unix_s=LEDGER.began_unix_us / 1e6,
                moves=[],
                steps=StepSummary(steps=1),
            )
        )

    most = {"service": request_metrics.MAX_SERVICES, "version": request_metrics.MAX_VERSIONS}
    seen = scraped(metrics)
    values = {s.labels[label] for s in samples(seen, "headrace_requests_total")}

    assert most[label] + 1 == len(values)
    assert OTHER in values
    assert 300 == value(seen, "headrace_requests_total")
    assert 300 == value(seen, "headrace_engine_observed_steps_total")


def test_the_page_has_every_family_before_the_first_request():
    """A dashboard or rule about something that has not happened yet must find the name."""
    empty, full = CollectorRegistry(), CollectorRegistry()
    empty.register(RequestMetrics())
    seen = RequestMetrics()
    for message in LEDGER_SAMPLES.values():
        if isinstance(message, LedgerBatch):
            seen.observe(message)
    full.register(seen)

    def types(registry: CollectorRegistry) -> set[str]:
        page = generate_latest(registry).decode()
        return {line for line in page.splitlines() if line.startswith("# TYPE")}

    assert types(empty) == types(full)


def test_words_of_later_gateways_add_no_labels():
    metrics = RequestMetrics()
    for number in range(20):
        attempt = Attempt(engine=EngineId("e9"), why="is gone", us=1, way=f"way-{number}")
        for outcome in Outcome:
            metrics.observe(
                batch(ledger(kind=f"kind-{number}", outcome=outcome, attempts=[attempt]))
            )

    page = generate_latest(_registry_of(metrics)).decode()

    assert "kind-" not in page
    assert "way-" not in page
    assert 1 == len(samples(metrics, "headrace_lost_attempts_total"))


def _registry_of(metrics: RequestMetrics) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(metrics)
    return registry
