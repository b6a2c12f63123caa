"""Ledgers for tests: a plain one to change, and any that the contract allows."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from shared.ids import EngineId, GatewayId, RequestId, ServiceName
from shared.messages import (
    STAGES,
    Attempt,
    Blocker,
    ChoiceRecord,
    Ledger,
    LedgerBatch,
    Outcome,
    Priority,
)

SERVICE, GATEWAY, ENGINE = ServiceName("smollm2"), GatewayId("g1"), EngineId("e1")
BEGAN_UNIX_US = 1_796_000_000_123_456
US = [300, 10_000, 700, 1_500, 20_000, 0, 25_000, 60_000, 13_000, 0, 500, 4_000]
PLAIN = Ledger(
    request=RequestId("chatcmpl-1"),
    began_unix_us=BEGAN_UNIX_US,
    wall_us=sum(US),
    us=US,
    outcome=Outcome.FINISHED,
    priority=Priority.DEFAULT,
    door="http",
    kind="chat",
    status=200,
    trace_id=bytes(range(16)),
    span_id=bytes(range(100, 108)),
    engine=ENGINE,
    version="1",
    choices=[ChoiceRecord(index=0, tokens=20, finish="stop")],
    prompt_tokens=200,
    completion_tokens=20,
    cached_tokens=50,
    prefill_tokens=150,
    batch_size=3.5,
    kv_blocks=14,
)


def ledger(**changes: Any) -> Ledger:
    """Return the plain ledger with changes; its wall time follows its stages."""
    if "wall_us" in changes:
        share = changes["wall_us"] // len(STAGES)
        rest = changes["wall_us"] - share * len(STAGES)
        changes["us"] = [share + rest, *[share] * (len(STAGES) - 1)]
    elif "us" in changes:
        changes["wall_us"] = sum(changes["us"])
    return msgspec.structs.replace(PLAIN, **changes)


def numbered(number: int, **changes: Any) -> Ledger:
    """Return a ledger with ids of its own; trace ids are spread evenly."""
    spread = (number * 0x9E3779B97F4A7C15) % (1 << 64)
    return ledger(
        request=RequestId(f"chatcmpl-{number}"),
        trace_id=number.to_bytes(8) + spread.to_bytes(8),
        span_id=(number + 1).to_bytes(8),
        **changes,
    )


def batch(*ledgers: Ledger, service: ServiceName = SERVICE) -> LedgerBatch:
    """Return a batch of a gateway."""
    return LedgerBatch(service=service, gateway=GATEWAY, ledgers=list(ledgers))


_words = st.text(max_size=40)
_counts = st.integers(0, 1 << 40)
_blockers = st.builds(Blocker, request=_words, us=_counts)
_attempts = st.builds(Attempt, engine=_words, why=_words, us=_counts, way=_words)
_choices = st.builds(ChoiceRecord, index=st.integers(0, 9), tokens=_counts, finish=_words)


def any_ledger() -> st.SearchStrategy[Ledger]:
    """Return all that the contract's types allow, within what a clock can say."""
    us = st.lists(st.integers(0, 1 << 36), min_size=len(STAGES), max_size=len(STAGES))
    fields: dict[str, st.SearchStrategy[Any]] = {
        "request": _words,
        "began_unix_us": st.integers(0, 1 << 52),
        "outcome": st.sampled_from(Outcome),
        "priority": st.sampled_from(Priority),
        "door": st.sampled_from(["http", "nats", ""]),
        "kind": st.sampled_from(["chat", "completion", ""]),
        "status": st.integers(0, 599),
        "code": _words,
        "tenant": _words,
        "label": st.text(max_size=2000),
        "trace_id": st.sampled_from([b"", b"short"]) | st.binary(min_size=16, max_size=16),
        "span_id": st.just(b"") | st.binary(min_size=8, max_size=8),
        "parent_id": st.just(b"") | st.binary(min_size=8, max_size=8),
        "trace_flags": st.integers(0, 255),
        "trace_state": st.sampled_from(["", "ot=th:8", "a=b,ot=rv:0123456789abcd;th:4", "ot="]),
        "is_streamed": st.booleans(),
        "ttft_us": _counts,
        "engine": _words,
        "version": _words,
        "attempts": st.lists(_attempts, max_size=2),
        "choices": st.lists(_choices, max_size=2),
        "prompt_tokens": _counts,
        "completion_tokens": _counts,
        "cached_tokens": _counts,
        "drafted_tokens": st.integers(0, 300),
        "accepted_tokens": st.integers(0, 300),
        "preemptions": st.integers(0, 2),
        "batch_size": st.floats(0, 1e6),
        "kv_blocks": _counts,
        "blocked_by": st.lists(_blockers, max_size=3),
        "mode": _words,
        "mode_changes": st.integers(0, 2),
        "is_estimated": st.booleans(),
    }
    return us.flatmap(
        lambda stages: st.builds(Ledger, us=st.just(stages), wall_us=st.just(sum(stages)), **fields)
    )
