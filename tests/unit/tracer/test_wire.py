"""Our OTLP bytes against opentelemetry-proto's classes: any ledger means the same to both."""

from __future__ import annotations

import random

import pytest
from google.protobuf.json_format import MessageToJson
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from services.tracer import wire
from services.tracer.adapters.otlp_http import gzip
from services.tracer.attributes import Hidden
from services.tracer.request_attributes import Context
from services.tracer.spans import trace_of
from shared.ids import RequestId, ServiceName
from shared.messages import STAGES
from tests.support.otlp import key_values, reference_span, spans_of, values_of
from tests.support.traced_ledgers import GATEWAY, SERVICE, any_ledger, ledger


def parsed(*parts: bytes) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest.FromString(wire.request({SERVICE: parts}, version="1.2"))


@settings(max_examples=25)
@given(
    one=any_ledger(),
    most=st.sampled_from([1, 5, 12, 13, 14, 50]),
    sensitive=st.sampled_from([(), ("llm.stage",), ("llm.request_id", "gen_ai")]),
)
def test_any_trace_means_the_same_as_the_classes_say(one, most, sensitive):
    context = Context(
        service=SERVICE,
        gateway=GATEWAY,
        trace_state=one.trace_state,
        max_spans=most,
        hidden=Hidden(sensitive),
    )
    trace = trace_of(one, context)

    found = spans_of(parsed(wire.spans(trace)))

    wanted = [reference_span(trace, span) for span in trace.spans]
    for span in (*wanted, *found):  # texts are cut, the classes do not
        for pair in span.attributes:
            if pair.key == "llm.client_request_id":
                cut = pair.value.string_value.encode()[: wire.MAX_VALUE_BYTES]
                pair.value.string_value = cut.decode(errors="ignore")
    assert wanted == found


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.text(min_size=1, max_size=20),
            st.text(max_size=300)
            | st.integers(-(1 << 63), (1 << 63) - 1)
            | st.booleans()
            | st.floats(allow_nan=False)
            | st.lists(st.text(max_size=9), max_size=3).map(tuple),
        ),
        max_size=5,
    )
)
def test_any_attribute_means_the_same(pairs):
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource  # noqa: PLC0415

    found = Resource.FromString(wire.attributes(wire.RESOURCE_ATTRIBUTE, pairs))

    assert key_values(pairs) == list(found.attributes)


@pytest.mark.parametrize("size", [1020, 1023, 1024, 1025])
def test_a_long_text_is_cut_between_two_characters(size):
    encoded = wire.text("x" * size + "é" * 9)

    assert len(encoded) <= wire.MAX_VALUE_BYTES
    assert encoded.decode().startswith("x" * min(size, 1024))


def test_ten_requests_travel_at_a_tenth_of_json_and_a_fifth_of_protobuf():
    draw = random.Random(1)
    context = Context(service=SERVICE, gateway=GATEWAY, trace_state="ot=th:0", reason="usual")
    several = [
        ledger(
            request=RequestId(f"chatcmpl-{draw.randbytes(12).hex()}"),
            trace_id=draw.randbytes(16),
            span_id=draw.randbytes(8),
            us=[draw.randrange(1, 1_000_000) for _ in STAGES],
            **{name: draw.randrange(5_000) for name in ("prompt_tokens", "ttft_us", "kv_blocks")},
        )
        for _ in range(10)
    ]

    made = wire.request(
        {SERVICE: [wire.spans(trace_of(one, context)) for one in several]}, version="1"
    )

    by_json = MessageToJson(ExportTraceServiceRequest.FromString(made), indent=None)
    sent = len(gzip(made))
    assert len(by_json.encode()) >= 10 * sent
    assert len(made) >= 5 * sent


def test_spans_are_grouped_by_service():
    one = wire.spans(trace_of(ledger(), Context(service=SERVICE, gateway=GATEWAY)))

    made = wire.request({SERVICE: [one, one], ServiceName("other"): [one]}, version="1.2")

    groups = ExportTraceServiceRequest.FromString(made).resource_spans
    assert [26, 13] == [len(group.scope_spans[0].spans) for group in groups]
    resources = [values_of(group.resource.attributes) for group in groups]
    assert ["smollm2", "other"] == [resource["service.name"] for resource in resources]
    assert "1.2" == resources[0]["telemetry.sdk.version"]
    assert "headrace.tracer" == groups[0].scope_spans[0].scope.name
