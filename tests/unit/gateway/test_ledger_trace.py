"""W3C trace context: what is taken from a caller, what is made anew, and what goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.ledger.trace import (
    ID_BITS,
    MAX_STATE_CHARS,
    TraceContext,
    continue_trace,
    valid_state,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OWN = 0x0123456789ABCDEF_0123456789ABCDEF_8899AABBCCDDEEFF


def given_parent(text: str | None, state: str | None = None) -> TraceContext:
    """Return the context of a request with this header."""
    return continue_trace(text, state, random_bits=OWN)


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (f"00-{TRACE}-{SPAN}-01", 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-03", 3),
        (f"00-{TRACE}-{SPAN}-ff", 3),
        (f"cc-{TRACE}-{SPAN}-01", 1),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", 1),
    ],
)
def test_a_callers_trace_goes_on_with_a_span_of_ours(text, flags):
    context = given_parent(text)

    assert f"00-{TRACE}-8899aabbccddeeff-{flags:02x}" == context.parent
    assert (TRACE, "8899aabbccddeeff", SPAN, flags) == (
        context.trace_id.hex(),
        context.span_id.hex(),
        context.parent_id.hex(),
        context.flags,
    )


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01-x",
        f"00-{TRACE}-{SPAN}-01x",
        f"cc-{TRACE}-{SPAN}-01x",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
        f"٠٠-{TRACE}-{SPAN}-01",
    ],
)
def test_without_a_valid_one_a_new_trace_begins(text):
    context = given_parent(text, "a=1")

    assert TRACE != context.trace_id.hex()
    assert (b"", "", 3) == (context.parent_id, context.state, context.flags)
    assert {"traceparent": context.parent} == context.fields()
    again = given_parent(context.parent)
    assert (context.trace_id, context.span_id, 3) == (again.trace_id, again.parent_id, again.flags)


@given(bits=st.integers(0, 2**ID_BITS - 1))
def test_no_id_is_all_zeros(bits):
    context = continue_trace(None, None, random_bits=bits)

    assert (16, 8) == (len(context.trace_id), len(context.span_id))
    assert any(context.trace_id)
    assert any(context.span_id)
    assert context.parent == f"00-{context.trace_id.hex()}-{context.span_id.hex()}-03"


@pytest.mark.parametrize(
    ("state", "passed"),
    [
        ("a=1", "a=1"),
        ("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        (" a=1 ,\t, b=2", "a=1,b=2"),
        ("fw529a3039@dt=FfF/4=f", ""),
        ("fw529a3039@dt=Ff F/4", "fw529a3039@dt=Ff F/4"),
        ("ot=th:8", "ot=th:8"),
        (",".join(f"k{n}=v" for n in range(32)), ",".join(f"k{n}=v" for n in range(32))),
        (",".join(f"k{n}=v" for n in range(33)), ""),
        ("a=1,a=2", ""),
        ("a", ""),
        ("a=", ""),
        ("A=1", ""),
        ("a=é", ""),
        ("a=1\n", ""),
        ("=1", ""),
        (f"a={'x' * 256}", f"a={'x' * 256}"),
        (f"a={'x' * 257}", ""),
        (f"{'k' * 257}=1", ""),
    ],
)
def test_a_state_is_passed_on_where_it_keeps_the_rules(state, passed):
    assert passed == valid_state(state)


def test_of_a_state_that_is_too_long_the_large_members_go_first():
    large = f"big={'x' * 150}"
    small = [f"k{n:02}={'v' * 40}" for n in range(10)]

    passed = valid_state(",".join([small[0], large, *small[1:]]))

    assert ",".join(small) == passed


@given(st.lists(st.integers(1, 256), min_size=1, max_size=32))
def test_what_is_passed_on_never_exceeds_the_bound(sizes):
    members = [f"k{index}={'v' * size}" for index, size in enumerate(sizes)]

    passed = valid_state(",".join(members))

    assert len(passed) <= MAX_STATE_CHARS
    assert all(member in members for member in passed.split(",") if member)
    if len(",".join(members)) <= MAX_STATE_CHARS:
        assert ",".join(members) == passed


def test_the_state_goes_on_beside_our_parent():
    context = given_parent(f"00-{TRACE}-{SPAN}-01", "a=1,b=2")

    assert {"traceparent": context.parent, "tracestate": "a=1,b=2"} == context.fields()
