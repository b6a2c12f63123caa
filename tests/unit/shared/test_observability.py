"""What a service's spec says of its traces: spellings, values, and messages that name the key and what to change."""

from __future__ import annotations

import pytest

from shared.errors import UserError
from shared.ids import ServiceName
from shared.observability import DEFAULT, Observability, read_observability, read_policies

FULL = Observability(
    sampling_rate=0.2,
    max_spans=50,
    export_timeout_s=5.0,
    sensitive=("layer.attention",),
    slow_s=2.0,
)


@pytest.mark.parametrize(
    "document",
    [
        {
            "sampling_rate": "20%",
            "max_span_per_request": 50,
            "trace_export_timeout": "5s",
            "sensitive_attrs": ["layer.attention"],
            "slow_threshold": "2s",
        },
        {
            "samplingRate": 0.2,
            "maxSpansPerRequest": "50",
            "traceExportTimeout": 5,
            "sensitiveAttr": "layer.attention",
            "slowThreshold": "2000ms",
        },
        {
            "sampling-rates": "0.2",
            "max_spans_per_request": 50.0,
            "traces_export_timeouts": "5000 ms",
            "sensitiveAttrs": ("layer.attention",),
            "slow_thresholds": 2.0,
        },
    ],
    ids=["snake", "camel", "plural"],
)
def test_all_spellings_mean_the_same(document):
    assert read_observability(document, where="x") == FULL


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"sampling_rate": "120%"}, "x.sampling_rate: '120%' does not fit"),
        ({"sampling_rate": 20}, "x.sampling_rate: 20"),
        ({"sampling_rate": True}, "x.sampling_rate: True"),
        ({"sampling_rate": "nan"}, "x.sampling_rate"),
        ({"maxSpanPerRequest": 0}, "x.maxSpanPerRequest: 0"),
        ({"maxSpanPerRequest": 1.5}, "x.maxSpanPerRequest: 1.5"),
        ({"maxSpanPerRequest": "inf"}, "x.maxSpanPerRequest"),
        ({"trace_export_timeout": "5 parsecs"}, "x.trace_export_timeout: '5 parsecs'"),
        ({"trace_export_timeout": 0}, "x.trace_export_timeout: 0"),
        ({"trace_export_timeout": "1h"}, "x.trace_export_timeout: '1h'"),
        ({"sensitive_attrs": [3]}, "x.sensitive_attrs"),
        ({"sensitive_attrs": {"a": 1}}, "x.sensitive_attrs"),
        ({"sensitive_attrs": 7}, "x.sensitive_attrs"),
        ({"sensitive_attrs": ["a b"]}, "x.sensitive_attrs"),
        ({"slow_threshold": None}, "x.slow_threshold: None"),
        ({"samplng_rate": 1}, "'samplng_rate'"),
        ({"colour": 1}, "'colour'"),
        ({"sampling_rate": 1, "samplingRates": 1}, "stands there as 'sampling_rate' already"),
        ([], "no table"),
        ("x", "no table"),
    ],
)
def test_what_does_not_fit_is_named_with_what_to_change(document, told):
    with pytest.raises(UserError) as error:
        read_observability(document, where="x")

    assert told in str(error.value)
    assert error.value.hint or "no table" in told


def test_a_typing_error_is_guessed():
    with pytest.raises(UserError) as error:
        read_observability({"samplng_rate": 1}, where="x")

    assert "did you mean sampling_rate?" == error.value.hint


def test_services_fall_back_to_the_default():
    policies = read_policies(
        {
            "default": {"sampling_rate": "1%", "max_span_per_request": 20},
            "services": {"smollm2": {"samplingRate": "100%"}, "other": None},
        }
    )

    assert (1.0, 20) == _told(policies.of(ServiceName("smollm2")))
    assert (0.01, 20) == _told(policies.of(ServiceName("other")))
    assert (0.01, 20) == _told(policies.of(ServiceName("unheard-of")))
    assert DEFAULT == read_policies({}).of(ServiceName("any"))


def _told(policy: Observability) -> tuple[float | None, int]:
    return policy.sampling_rate, policy.max_spans


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"service": {}}, "'service'"),
        ({"services": {"s": {"sampling_rate": "x"}}}, "services.s.sampling_rate"),
        ({"default": 3}, "default: 3 is no table"),
        ({"services": [1]}, "services: [1] is no table"),
        (["x"], "the file"),
    ],
)
def test_a_file_that_does_not_fit_is_told(document, told):
    with pytest.raises(UserError, match=r".") as error:
        read_policies(document)

    assert told in str(error.value)
