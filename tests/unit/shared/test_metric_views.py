"""Metrics get the labels of their process and the names that runbooks know; the table of aliases is sound."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from shared.metric_aliases import ALIASES
from shared.metric_views import Aliased, Labelled


class Fixed(Collector):
    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self):
        yield from self._families


def page(collector: Collector) -> list[str]:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode().splitlines()


def gauge(name: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(name, "Text.", labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def test_labels_are_added_and_never_replaced():
    labelled = Labelled(
        Fixed(gauge("a", 1), gauge("b", 2, service="own")), lambda: {"service": "s", "engine": "e"}
    )

    lines = page(labelled)

    assert 'a{engine="e",service="s"} 1.0' in lines
    assert 'b{engine="e",service="own"} 2.0' in lines


def test_a_gauge_is_also_there_under_its_old_name_with_its_labels_and_copies():
    lines = page(Aliased(Fixed(gauge("llm_engine_free_blocks", 7, service="s")), "engine"))

    assert 'llm_engine_free_blocks{service="s"} 7.0' in lines
    assert 'vllm_gpu_cache_free_blocks{model_name="s",service="s"} 7.0' in lines
    assert "# TYPE vllm_gpu_cache_free_blocks gauge" in lines


def test_counters_and_histograms_keep_their_suffixes():
    answers = CounterMetricFamily("headrace_gateway_http_answers", "Text.", labels=["status"])
    answers.add_metric(["500"], 3)
    took = HistogramMetricFamily("headrace_gateway_http_answer_seconds", "Text.")
    took.add_metric([], [("1.0", 2), ("+Inf", 4)], 9.0)

    lines = page(Aliased(Fixed(answers, took), "gateway"))

    assert 'http_requests_total{code="500",status="500"} 3.0' in lines
    assert 'http_request_duration_seconds_bucket{le="+Inf"} 4.0' in lines
    assert "http_request_duration_seconds_sum 9.0" in lines
    assert "# TYPE http_request_duration_seconds histogram" in lines


def test_a_page_has_its_own_aliases_only():
    lines = page(Aliased(Fixed(gauge("llm_engine_free_blocks", 7)), "gateway"))

    assert not [line for line in lines if "vllm" in line]


@pytest.mark.parametrize("alias", ALIASES, ids=lambda alias: alias.name)
def test_an_alias_is_spelled_as_its_source_is(alias):
    assert alias.name.endswith("_total") == alias.source.endswith("_total")
    assert alias.meaning.endswith(".")
    assert 1 == sum(other.name == alias.name for other in ALIASES)
    assert 1 == sum(other.source == alias.source for other in ALIASES)
