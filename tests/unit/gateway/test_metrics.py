"""The figures page: histograms count rightly, and labels stay few."""

from __future__ import annotations

from services.gateway.metrics import GatewayMetrics, Reading, Spread, Total
from shared.messages import Priority


def test_a_spread_counts_into_cumulative_buckets():
    spread = Spread("x", "Text.", (0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        spread.observe(Priority.DEFAULT, seconds)

    (family,) = spread.collect()
    samples = {
        (s.name.removeprefix("headrace_gateway_x_seconds"), s.labels.get("le")): s.value
        for s in family.samples
        if s.labels["class"] == "default"
    }

    assert (2, 3, 4) == tuple(samples["_bucket", le] for le in ("0.1", "1.0", "+Inf"))
    assert 4 == samples["_count", None]
    assert 7.65 == round(samples["_sum", None], 9)


def test_readings_are_read_at_each_scrape():
    metrics = GatewayMetrics()
    value = [1.0]
    metrics.watch(
        [
            Reading("things", "Things.", lambda: value[0], labels={"kind": "a"}),
            Reading("things", "Things.", lambda: 5.0, labels={"kind": "b"}),
            Reading("all", "All.", lambda: 9.0, is_total=True),
        ]
    )
    value[0] = 2.0

    page = metrics.page().decode()

    assert 'headrace_gateway_things{kind="a"} 2.0' in page
    assert 'headrace_gateway_things{kind="b"} 5.0' in page
    assert "headrace_gateway_all_total 9.0" in page
    assert 1 == page.count("# TYPE headrace_gateway_things ")


def test_a_total_counts_by_its_labels():
    total = Total("x", "Text.", ("kind", "class"))
    for priority in (Priority.DEFAULT, Priority.DEFAULT, Priority.BATCH):
        total.counts["a", priority] += 1

    (family,) = total.collect()

    assert [
        ("headrace_gateway_x_total", {"kind": "a", "class": "default"}, 2),
        ("headrace_gateway_x_total", {"kind": "a", "class": "batch"}, 1),
    ] == [(s.name, s.labels, s.value) for s in family.samples]
