"""Minutes of overload at the gate, played out in milliseconds: who is let in is in time, who is not is told at once, nobody starves."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import msgspec
import pytest

from services.gateway.admission.gate import Gate
from services.gateway.admission.verdict import (
    AdmissionSettings,
    AdmitReason,
    Offer,
    Ticket,
    Verdict,
)
from shared.ids import TenantId
from shared.messages import Priority

SLOTS = 8
TICK_S = 0.1
MEAN_S = 0.4
CAPACITY_PER_S = SLOTS / MEAN_S


class Stream(msgspec.Struct, frozen=True):
    """Requests at a steady mean rate."""

    name: str
    per_s: float
    priority: Priority = Priority.DEFAULT
    tenant: str = "a"
    timeout_s: float = 4.0
    begins_s: float = 0.0
    ends_s: float = 60.0


class Got(msgspec.Struct):
    """What the requests of a stream got."""

    sent: int = 0
    in_time: int = 0
    late: int = 0
    refused_s: list[float] = []

    def refused_within(self, ratio: float) -> float:
        """Return the time within which this share of the refused was told."""
        return sorted(self.refused_s)[int(ratio * (len(self.refused_s) - 1))]


class Played:
    """A gate, slots that hold requests for times from a distribution, and streams of requests."""

    def __init__(
        self, streams: list[Stream], hold_s: Callable[[random.Random], float], *, seed: int = 1
    ) -> None:
        self.rng = random.Random(seed)
        self.hold_s = hold_s
        self.gate = Gate(AdmissionSettings())
        self.gate.set_limit(SLOTS, now=0.0)
        self.got = {stream.name: Got() for stream in streams}
        self.sent: dict[Ticket, tuple[Stream, float]] = {}
        self.events: list[tuple[float, int, Stream | Ticket | None]] = []
        self.count = 0
        for stream in streams:
            self.at(stream.begins_s + self.rng.expovariate(stream.per_s), stream)
        self.at(TICK_S, None)
        while len(self.events) > 1 or self.gate.waiting:
            self.step()

    def at(self, when: float, event: Stream | Ticket | None) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, event))

    def step(self) -> None:
        now, _, event = heapq.heappop(self.events)
        if event is None:
            self.take(self.gate.tick(now=now), now)
            self.at(now + TICK_S, None)
        elif isinstance(event, Stream):
            self.arrive(event, now)
        else:
            stream, since = self.sent[event]
            got = self.got[stream.name]
            if now - since <= stream.timeout_s:
                got.in_time += 1
            else:
                got.late += 1
            self.take(self.gate.finished(event, now=now), now)

    def arrive(self, stream: Stream, now: float) -> None:
        later = now + self.rng.expovariate(stream.per_s)
        if later < stream.ends_s:
            self.at(later, stream)
        ticket = Ticket(len(self.sent))
        self.sent[ticket] = (stream, now)
        self.got[stream.name].sent += 1
        offer = Offer(
            ticket=ticket,
            tenant=TenantId(stream.tenant),
            priority=stream.priority,
            choices=1,
            work_tokens=20,
            deadline=now + stream.timeout_s,
        )
        self.take(self.gate.offer(offer, now=now), now)

    def take(self, verdicts: list[Verdict], now: float) -> None:
        for verdict in verdicts:
            stream, since = self.sent[verdict.ticket]
            if verdict.is_admitted:
                # What is too late is ended at its deadline.
                ends = min(now + self.hold_s(self.rng), since + stream.timeout_s + 1e-6)
                self.at(ends, verdict.ticket)
            elif verdict.is_refused:
                self.got[stream.name].refused_s.append(now - since)


def steady(rng: random.Random) -> float:
    return MEAN_S * rng.uniform(0.8, 1.2)


def mixed(rng: random.Random) -> float:
    return MEAN_S * rng.expovariate(1.0)


def flood(per_s: float, **fields) -> Stream:
    return Stream(**{"name": "flood", "per_s": per_s * CAPACITY_PER_S} | fields)


@pytest.mark.parametrize(("hold_s", "late_ratio"), [(steady, 0.0), (mixed, 0.01)])
def test_ten_times_the_capacity(hold_s, late_ratio):
    streams = [
        flood(0.4, name="interactive", priority=Priority.INTERACTIVE),
        flood(4.8, name="default"),
        flood(4.8, name="batch", priority=Priority.BATCH),
    ]
    got = Played(streams, hold_s).got
    served = sum(each.in_time for each in got.values())

    assert sum(each.late for each in got.values()) <= late_ratio * served, got
    assert served > 0.95 * CAPACITY_PER_S * 60
    assert got["interactive"].in_time > 0.99 * got["interactive"].sent
    for each in (got["default"], got["batch"]):
        # Those of the first moments wait a little, since nothing has been measured yet.
        assert 0 == each.refused_within(0.98)
        assert each.in_time > 0.05 * CAPACITY_PER_S * 60


def test_an_overload_takes_nothing_from_other_tenants_of_the_class():
    streams = [
        flood(8, name="big", tenant="a"),
        flood(4, name="less", tenant="b"),
        flood(0.2, name="small", tenant="c"),
    ]
    got = Played(streams, mixed).got

    assert got["small"].in_time > 0.99 * got["small"].sent
    assert 0.9 < got["big"].in_time / got["less"].in_time < 1.1
    for each in (got["big"], got["less"]):
        assert each.late <= 0.02 * each.in_time
        assert 0 == each.refused_within(0.98)


def test_all_are_served_again_as_soon_as_it_is_over():
    streams = [
        flood(10, ends_s=20.0),
        flood(0.5, name="after", begins_s=22.0, ends_s=40.0),
    ]
    after = Played(streams, mixed).got["after"]

    assert after.sent == after.in_time


def test_who_waits_is_told_as_soon_as_the_slots_are_gone_that_it_waits_for():
    made = Gate(AdmissionSettings())
    made.set_limit(4, now=0.0)
    made.offer(offer(0), now=0.0)
    made.finished(Ticket(0), now=1.0)
    reasons = {no: made.offer(offer(no), now=1.0)[0].reason for no in range(1, 13)}
    waiting = [no for no, reason in reasons.items() if reason is AdmitReason.QUEUED]
    assert [] == made.tick(now=1.0)

    made.set_limit(1, now=1.1)
    refused = [verdict.ticket for verdict in made.tick(now=1.1)]

    assert waiting[3:] == refused


def test_who_waits_outlives_a_moment_without_any_engine():
    made = Gate(AdmissionSettings())
    made.set_limit(4, now=0.0)
    made.offer(offer(0), now=0.0)
    made.finished(Ticket(0), now=1.0)
    for no in range(1, 12):
        made.offer(offer(no), now=1.0)

    made.set_limit(0, now=1.1)

    assert [] == made.tick(now=1.1)


def test_the_first_of_a_tenant_does_not_look_late_behind_the_line_of_another():
    made = Gate(AdmissionSettings())
    made.set_limit(1, now=0.0)
    made.offer(offer(0), now=0.0)
    made.finished(Ticket(0), now=1.0)
    made.offer(offer(1), now=1.0)
    for no in range(2, 7):
        made.offer(offer(no, deadline=20.0), now=1.0)

    (second,) = made.offer(offer(7, tenant="b", deadline=4.5), now=1.0)
    (third,) = made.offer(offer(8, tenant="b", deadline=4.5), now=1.0)

    assert (AdmitReason.QUEUED, AdmitReason.TOO_LATE) == (second.reason, third.reason)


def offer(no: int, *, tenant: str = "a", deadline: float = 6.0) -> Offer:
    return Offer(
        ticket=Ticket(no),
        tenant=TenantId(tenant),
        priority=Priority.DEFAULT,
        choices=1,
        work_tokens=20,
        deadline=deadline,
    )
