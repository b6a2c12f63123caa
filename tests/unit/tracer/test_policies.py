"""What a service was declared with holds for its traces; else what the file says."""

from __future__ import annotations

from services.tracer.policies import LivePolicies
from shared.entry import Entry
from shared.ids import ServiceName
from shared.messages import ServiceRecord
from shared.observability import Observability, Policies
from shared.spec.model import CustomMetric, LLMService, ObservabilitySpec
from shared.spec.writing import to_document
from tests.support.specs import service

CHAT = ServiceName("chat")
FILE = Policies(default=Observability(max_spans=9), services={CHAT: Observability(max_spans=8)})


def entries(*specs: LLMService) -> dict[str, Entry[ServiceRecord]]:
    return {
        spec.name: Entry(
            ServiceRecord(service=spec.name, spec=to_document(spec), generation=1, revision="r"), 1
        )
        for spec in specs
    }


def test_a_declared_policy_holds_before_that_of_the_file():
    live = LivePolicies(FILE)
    assert live.of(CHAT).max_spans == 8
    said = ObservabilitySpec(
        sampling_rate=0.2,
        max_spans=5,
        export_timeout_s=2.0,
        sensitive=("layer.attention",),
        slow_s=3.0,
        trace_stages=("decode",),
    )
    live.take(entries(service(observability=said)))
    assert live.of(CHAT) == Observability(
        sampling_rate=0.2,
        max_spans=5,
        export_timeout_s=2.0,
        sensitive=("layer.attention",),
        slow_s=3.0,
        stages=("decode",),
    )
    live.take({})
    assert live.of(CHAT).max_spans == 8


def test_a_service_that_says_nothing_of_traces_leaves_them_to_the_file():
    live = LivePolicies(FILE)
    metric = CustomMetric(name="x", expression="y")
    live.take(entries(service(observability=ObservabilitySpec(custom_metrics=(metric,)))))
    assert live.of(CHAT).max_spans == 8
    assert live.of(ServiceName("other")).max_spans == 9


def test_a_record_that_cannot_be_read_says_nothing():
    live = LivePolicies(FILE)
    broken = ServiceRecord(service=CHAT, spec={}, generation=1, revision="r")
    live.take({CHAT: Entry(broken, 1)})
    assert live.of(CHAT).max_spans == 8
