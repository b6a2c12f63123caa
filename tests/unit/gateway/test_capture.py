"""Prompts are kept only where it was switched on, within bounds, and are gone when the time is over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway import capture
from services.gateway.capture import CaptureRing
from shared.ids import RequestId, ServiceName
from shared.messages import TextPrompt

SERVICE = ServiceName("m")


def take(ring: CaptureRing, request: str, *, now: float, text: str = "hi", label: str = "") -> None:
    ring.take(SERVICE, RequestId(request), label, (TextPrompt(text=text),), now=now)


def on(seconds: float = 60.0) -> CaptureRing:
    ring = CaptureRing()
    ring.switch(SERVICE, seconds, now=0.0)
    return ring


def test_nothing_is_kept_unless_it_was_switched_on():
    ring = CaptureRing()

    take(ring, "r1", now=0.0)

    assert ring.find("r1", now=0.0) is None


def test_a_captured_request_is_found_by_its_id_and_by_its_callers_name():
    ring = on()

    take(ring, "r1", now=1.0, label="mine")
    take(ring, "r2", now=2.0, label="mine", text="newer")

    first, newest = ring.find("r1", now=3.0), ring.find("mine", now=3.0)
    assert first is not None
    assert newest is not None
    assert ("r1", "r2") == (first.request, newest.request)


def test_other_services_are_not_captured():
    ring = on()

    ring.take("other", RequestId("r1"), "", (TextPrompt(text="hi"),), now=1.0)

    assert ring.find("r1", now=1.0) is None


def test_all_is_forgotten_when_the_time_is_over():
    ring = on(10.0)
    take(ring, "r1", now=9.9)

    ring.tick(now=10.0)

    assert ring.find("r1", now=10.0) is None
    assert (0, 0) == (ring.services, ring.held(SERVICE, now=10.0).size)
    take(ring, "r2", now=10.1)
    assert ring.find("r2", now=10.1) is None


def test_even_without_a_tick_nothing_is_kept_or_found_after_its_time():
    ring = on(10.0)
    take(ring, "r1", now=1.0)
    take(ring, "r2", now=10.5)

    assert ring.find("r1", now=11.0) is None
    assert ring.find("r2", now=11.0) is None


def test_switching_it_off_forgets_at_once():
    ring = on()
    take(ring, "r1", now=1.0)

    ring.switch(SERVICE, 0.0, now=2.0)

    assert ring.find("r1", now=2.0) is None


def test_an_hour_is_the_most():
    assert capture.MAX_S == on(1e9).held(SERVICE, now=0.0).left_s


def test_a_second_switch_sets_the_time_anew_and_keeps_what_is_there():
    ring = on(10.0)
    take(ring, "r1", now=1.0)

    ring.switch(SERVICE, 100.0, now=5.0)

    assert ring.find("r1", now=50.0) is not None


def test_what_is_too_large_is_passed_over_and_counted():
    ring = on()

    take(ring, "r1", now=1.0, text="x" * capture.MAX_REQUEST_BYTES)

    held = ring.held(SERVICE, now=1.0)
    assert (0, 1) == (held.requests, held.passed_over)


def test_there_is_a_bound_of_services():
    ring = CaptureRing()
    for number in range(capture.MAX_SERVICES + 1):
        ring.switch(ServiceName(f"s{number}"), 60.0, now=0.0)

    assert capture.MAX_SERVICES == ring.services


@pytest.mark.parametrize("size", [10, capture.MAX_REQUEST_BYTES // 2])
def test_the_oldest_go_first(size):
    ring = on()
    for number in range(capture.MAX_REQUESTS + 10):
        take(ring, f"r{number}", now=1.0, text="x" * size)

    held = ring.held(SERVICE, now=1.0)
    assert held.requests <= capture.MAX_REQUESTS
    assert held.size <= capture.MAX_BYTES
    assert ring.find("r0", now=1.0) is None
    assert ring.find(f"r{capture.MAX_REQUESTS + 9}", now=1.0) is not None


def test_a_view_of_the_ring_shows_no_text():
    ring = on()
    take(ring, "r1", now=1.0, text="secret")

    assert "secret" not in repr(ring)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.booleans()), max_size=60))
def test_the_size_is_always_that_of_what_is_kept(steps):
    ring = CaptureRing()
    now = 0.0
    for name, size, is_switch in steps:
        now += 1.0
        if is_switch:
            ring.switch(ServiceName(name), size / 2, now=now)
        else:
            ring.take(name, RequestId(f"r{size}"), "", (TextPrompt(text="x" * size),), now=now)
    assert ring._size == sum(each.size for each in ring._kept.values())
    ring.tick(now=now + capture.MAX_S + 1)
    assert 0 == ring._size == len(ring._kept)
