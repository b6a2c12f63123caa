"""Requests over HTTP count once each, by service and status, under our names and the usual ones."""

from __future__ import annotations

import msgspec

from services.gateway.metrics import GatewayMetrics
from shared.ids import ServiceName
from shared.messages import UNKNOWN_SERVICE, Outcome
from tests.contract.golden_ledger import LEDGER

REFUSED = msgspec.structs.replace(LEDGER, outcome=Outcome.REFUSED, status=503, wall_us=2_000)
UNREAD = msgspec.structs.replace(LEDGER, outcome=Outcome.INVALID, status=400, kind="", wall_us=900)


def page_after(*entries: tuple[ServiceName, object]) -> list[str]:
    metrics = GatewayMetrics()
    for service, entry in entries:
        metrics.entered(service, entry)
    return metrics.page().decode().splitlines()


def test_status_and_time_by_service():
    s = ServiceName("s")
    lines = page_after((s, LEDGER), (s, LEDGER), (s, REFUSED), (UNKNOWN_SERVICE, UNREAD))
    chat = 'handler="/v1/chat/completions",method="POST",service="s"'

    for line in (
        f'http_requests_total{{code="200",{chat},status="200"}} 2.0',
        f'http_requests_total{{code="503",{chat},status="503"}} 1.0',
        'http_requests_total{code="400",handler="",method="POST",service="unknown",status="400"} 1.0',
        f'headrace_gateway_http_answers_total{{{chat},status="200"}} 2.0',
        f"http_request_duration_seconds_count{{{chat}}} 3.0",
        f"http_request_duration_seconds_sum{{{chat}}} 9.122",
    ):
        assert line in lines, line
    buckets = [line for line in lines if "duration_seconds_bucket" in line and '"s"' in line]
    assert any('le="0.01"' in line and line.endswith(" 1.0") for line in buckets)
    assert any('le="5.0"' in line and line.endswith(" 3.0") for line in buckets)


def test_other_doors_are_no_http():
    lines = page_after((ServiceName("s"), msgspec.structs.replace(LEDGER, door="nats")))

    assert not [line for line in lines if line.startswith("http_requests_total")]
    assert "# TYPE http_requests_total counter" in lines
