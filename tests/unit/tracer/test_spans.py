"""The tree of a request's spans: who is whose parent, that times add up, what is told where, and what is hidden."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings

from services.tracer import names
from services.tracer.attributes import Hidden
from services.tracer.request_attributes import Context
from services.tracer.spans import Kind, Span, Trace, ids_of, trace_of
from shared.ids import EngineId, RequestId
from shared.messages import STAGES, Attempt, BlackBox, Blocker, Outcome, Priority
from tests.support.traced_ledgers import BEGAN_UNIX_US, GATEWAY, SERVICE, US, any_ledger, ledger

CONTEXT = Context(service=SERVICE, gateway=GATEWAY, trace_state="ot=th:0", reason="slow")
TWELVE = {
    names.STAGE,
    names.REQUEST_ID,
    names.SERVICE,
    names.VERSION,
    names.ENGINE_ID,
    names.PRIORITY,
    names.PREFILL_TOKENS,
    names.CACHED_TOKENS,
    names.KV_CACHE_HIT_RATE,
    names.DECODE_TOKENS,
    names.BATCH_SIZE,
    names.KV_BLOCKS,
}


def context(**changes: object) -> Context:
    return Context(service=SERVICE, gateway=GATEWAY, **changes)  # type: ignore[arg-type] # what the test says


def told(trace: Trace, span: Span) -> dict[str, object]:
    """Return a span's attributes, those that all share included."""
    pairs = [*span.group.pairs, *span.attributes, *trace.group.pairs, *trace.shared]
    assert len(pairs) == len(dict(pairs)), "a name twice"
    return dict(pairs)


def named(trace: Trace, name: str) -> Span:
    (found,) = [span for span in trace.spans if span.name == name]
    return found


def test_twelve_stages_lie_end_to_end_below_the_root():
    trace = trace_of(ledger(), CONTEXT)

    root, *stages = trace.spans
    assert [stage.value for stage in STAGES] == [span.name for span in stages]
    assert {root.span_id} == {span.parent_id for span in stages}
    assert all(before.end_ns == after.begin_ns for before, after in pairwise(stages))
    assert (root.begin_ns, root.end_ns) == (stages[0].begin_ns, stages[-1].end_ns)
    assert [us * 1000 for us in US] == [span.end_ns - span.begin_ns for span in stages]
    assert BEGAN_UNIX_US * 1000 == root.begin_ns
    assert (Kind.SERVER, {Kind.INTERNAL}) == (root.kind, {span.kind for span in stages})


def test_every_stage_span_carries_the_twelve_attributes():
    trace = trace_of(ledger(), CONTEXT)

    for span in trace.row.spans():
        assert TWELVE == told(trace, span).keys()
    decode = told(trace, named(trace, "decode"))
    assert ("decode", "chatcmpl-1", 0.25) == (
        decode[names.STAGE],
        decode[names.REQUEST_ID],
        decode[names.KV_CACHE_HIT_RATE],
    )


def test_the_root_speaks_opentelemetrys_names():
    trace = trace_of(ledger(), CONTEXT)

    root = told(trace, trace.root)
    assert "chat smollm2" == trace.root.name
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": "smollm2",
        "gen_ai.response.model": "smollm2",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 200,
        "gen_ai.usage.output_tokens": 20,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/v1/chat/completions",
        "llm.span_layout": "sequential",
        "llm.kept_because": "slow",
        "llm.gateway_id": GATEWAY,
    }
    assert expected == {name: root.get(name) for name in expected}
    assert names.DROPPED_SPANS not in root
    assert trace.root.error is None


def test_a_call_over_nats_has_no_http():
    trace = trace_of(ledger(door="nats", kind="completion"), CONTEXT)

    root = told(trace, trace.root)
    assert "text_completion smollm2" == trace.root.name
    assert not [name for name in root if name.startswith("http.")]


def test_the_callers_span_is_the_parent_and_remote():
    trace = trace_of(ledger(parent_id=b"12345678", trace_flags=0x03), CONTEXT)

    assert b"12345678" == trace.root.parent_id
    assert 0x303 == trace.root.flags
    assert {0x103} == {span.flags for span in trace.row.spans()}


@pytest.mark.parametrize(
    ("changes", "error", "error_type"),
    [
        (
            {"outcome": Outcome.FAILED, "status": 502, "code": "engine_lost"},
            "engine_lost",
            "engine_lost",
        ),
        ({"outcome": Outcome.EXPIRED, "status": 200}, "expired", "expired"),
        ({"outcome": Outcome.STOPPED, "status": 503, "code": ""}, "stopped", "stopped"),
        (
            {"outcome": Outcome.REFUSED, "status": 503, "code": "overloaded"},
            "overloaded",
            "overloaded",
        ),
        ({"outcome": Outcome.REFUSED, "status": 429, "code": "overloaded"}, None, "overloaded"),
        ({"outcome": Outcome.INVALID, "status": 400, "code": "bad"}, None, "bad"),
        ({"outcome": Outcome.LEFT, "status": 499}, None, None),
    ],
)
def test_only_the_servers_own_errors_are_a_status(changes, error, error_type):
    trace = trace_of(ledger(**changes), CONTEXT)

    assert error == trace.root.error
    assert error_type == told(trace, trace.root).get(names.ERROR_TYPE)
    assert {None} == {span.error for span in trace.spans[1:]}


def test_drafts_are_a_producer_below_decode():
    trace = trace_of(ledger(drafted_tokens=90, accepted_tokens=40), CONTEXT)

    draft, decode = named(trace, "draft"), named(trace, "decode")
    assert Kind.PRODUCER == draft.kind
    assert decode.span_id == draft.parent_id
    assert (decode.begin_ns, decode.end_ns) == (draft.begin_ns, draft.end_ns)
    assert (90, 40) == tuple(
        told(trace, draft)[name] for name in (names.DRAFTED_TOKENS, names.ACCEPTED_TOKENS)
    )
    assert 14 == len(trace.spans)


def test_who_held_it_up_stands_on_decode_wait():
    blockers = [Blocker(request=RequestId("cmpl-9"), us=1_200)]
    trace = trace_of(
        ledger(
            blocked_by=blockers, preemptions=2, recomputed_tokens=64, mode_changes=1, mode="A/eager"
        ),
        CONTEXT,
    )

    waited, decode = named(trace, "decode_wait"), named(trace, "decode")
    assert [
        ("blocked", {"llm.blocked_by": "cmpl-9", "llm.blocked_us": 1_200}),
        ("preempted", {"llm.preemptions": 2, "llm.recomputed_tokens": 64}),
    ] == [(event.name, dict(event.attributes)) for event in waited.events]
    assert [waited.begin_ns] * 2 == [event.unix_ns for event in waited.events]
    assert [("mode_changed", {"llm.mode": "A/eager", "llm.mode_changes": 1})] == [
        (event.name, dict(event.attributes)) for event in decode.events
    ]
    assert 13 == len(trace.spans)


def test_a_lost_engine_is_told_with_its_black_box():
    lost = EngineId("e-dead")
    box = BlackBox(
        engine=lost, service=SERVICE, path="a/b.json", host="node-1", cause="signal 9", last_step=7
    )
    attempts = [Attempt(engine=lost, why="is gone", us=9_000, way="resume")]

    trace = trace_of(ledger(attempts=attempts), context(boxes={lost: box}))
    without = trace_of(ledger(attempts=attempts), context())

    (event,) = trace.root.events
    assert {
        "llm.engine_id": lost,
        "llm.why": "is gone",
        "llm.way": "resume",
        "llm.black_box": "node-1:a/b.json",
        "llm.cause": "signal 9",
        "llm.last_step": 7,
    } == dict(event.attributes)
    assert trace.root.begin_ns < event.unix_ns < trace.root.end_ns
    assert names.BLACK_BOX not in dict(without.root.events[0].attributes)


@pytest.mark.parametrize(
    ("most", "kept"),
    [(14, 14), (13, 13), (3, 3), (2, 2), (1, 1)],
)
def test_no_more_spans_than_allowed_and_the_longest_stay(most, kept):
    trace = trace_of(ledger(drafted_tokens=1), context(max_spans=most))

    assert kept == len(trace.spans)
    if most == 3:
        assert ["prefill", "decode"] == [span.name for span in trace.spans[1:]]
    assert 14 - kept == told(trace, trace.root).get(names.DROPPED_SPANS, 0)


def test_what_is_sensitive_does_not_leave_under_another_name():
    hidden = Hidden(("llm.request_id", "llm.stage", "gen_ai.usage"))
    blocked = [Blocker(request=RequestId("cmpl-9"), us=1)]
    trace = trace_of(ledger(blocked_by=blocked, drafted_tokens=3), context(hidden=hidden))

    assert "chatcmpl-1" not in repr(trace)
    assert "cmpl-9" not in repr(trace)
    for span in trace.spans:
        assert names.STAGE not in told(trace, span)
    assert names.INPUT_TOKENS not in told(trace, trace.root)
    assert names.OUTCOME in told(trace, trace.root)


def test_a_request_without_ids_gets_the_same_ones_each_time():
    early = ledger(trace_id=b"", span_id=b"")

    assert ids_of(early) == ids_of(early)
    assert (16, 8) == tuple(map(len, ids_of(early)))
    assert ids_of(early) != ids_of(ledger(trace_id=b"", span_id=b"", request=RequestId("other")))


@settings(max_examples=25)
@given(any_ledger())
def test_ids_are_distinct_and_times_within_the_root(any_one):
    trace = trace_of(any_one, CONTEXT)

    assert len(trace.spans) == len({span.span_id for span in trace.spans})
    known = {span.span_id for span in trace.spans}
    for span in trace.spans[1:]:
        assert span.parent_id in known
        assert trace.root.begin_ns <= span.begin_ns <= span.end_ns <= trace.root.end_ns
        told(trace, span)
    assert Priority(str(told(trace, trace.root)[names.PRIORITY])) is any_one.priority


def test_only_wanted_stages_get_spans_and_the_others_do_not_count_as_dropped():
    whole = trace_of(ledger(), CONTEXT)
    trace = trace_of(ledger(), context(stages=("decode", "prefill")))

    root, *stages = trace.spans
    assert ["prefill", "decode"] == [span.name for span in stages]
    assert names.DROPPED_SPANS not in dict(root.attributes)
    for span in stages:
        assert (span.begin_ns, span.end_ns) == (
            named(whole, span.name).begin_ns,
            named(whole, span.name).end_ns,
        )
