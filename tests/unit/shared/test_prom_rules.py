"""What cannot become a rule is told. Whether Prometheus takes the rules, and when they fire: tests/contract/test_prom_rules.py."""

from __future__ import annotations

import pytest

from shared.errors import UserError
from shared.ids import ServiceName
from shared.objectives import parse_objective
from shared.prom_rules import ServiceRules, service_rules
from shared.spec.model import CustomMetric


def rules(*objectives: str, custom: tuple[CustomMetric, ...] = ()) -> str:
    return service_rules(
        ServiceRules(
            service=ServiceName("s"),
            custom_metrics=custom,
            objectives=tuple(parse_objective(text) for text in objectives),
        )
    )


@pytest.mark.parametrize(
    ("name", "expression", "told"),
    [
        ("a-b", "1", "cannot be the name"),
        ("1a", "1", "cannot be the name"),
        ("headrace_requests_total", "1", "cannot be the name"),
        ("vllm_decode_tokens_total", "1", "cannot be the name"),
        ("a", "  ", "has no expression"),
    ],
)
def test_names_that_cannot_be_are_told(name, expression, told):
    with pytest.raises(UserError, match=told):
        rules(custom=(CustomMetric(name=name, expression=expression),))


def test_what_is_there_twice_is_told():
    with pytest.raises(UserError, match="twice"):
        rules(custom=(CustomMetric(name="a", expression="1"),) * 2)
    with pytest.raises(UserError, match="more than one latency_p99"):
        rules("P99 < 2s", "P99 < 5s")


def test_an_alert_that_can_never_fire_is_left_out():
    """14.4, 6 and 3 times half of all requests are more than all."""
    assert 4 == rules("P99 TTFT < 2s").count("alert:")
    assert 1 == rules("P50 TTFT < 2s").count("alert:")
