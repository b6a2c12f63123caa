"""The gate lets in, queues and refuses by class, tenant, deadline and bounds, and never loses count."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.admission.gate import Gate
from services.gateway.admission.offline import OfflineRule
from services.gateway.admission.verdict import (
    AdmissionSettings,
    AdmitReason,
    Offer,
    Ticket,
    Verdict,
)
from shared.ids import TenantId
from shared.messages import Priority


def offer(no: int, *, tenant="a", choices=1, size=0, **fields):
    defaults = {"priority": Priority.DEFAULT, "work_tokens": 100, "deadline": 1e9}
    return Offer(
        ticket=Ticket(no),
        tenant=TenantId(tenant),
        choices=choices,
        prompt_bytes=size,
        **(defaults | fields),
    )


def gate(limit: int = 1, **settings) -> Gate:
    made = Gate(AdmissionSettings(**settings))
    made.set_limit(limit, now=0.0)
    return made


def drain(made: Gate, running: list[int]) -> list[int]:
    """End what runs, one after the other, and return the order of admission of those that waited."""
    order: list[int] = []
    while running:
        verdicts = made.finished(Ticket(running.pop(0)), now=1.0)
        admitted = [v.ticket for v in verdicts if v.is_admitted]
        order += admitted
        running += admitted
    return order


def test_room_lets_in_at_once():
    (verdict,) = gate(2).offer(offer(1), now=0.0)

    assert AdmitReason.FREE is verdict.reason


def test_without_a_ready_engine_the_answer_is_try_later():
    (verdict,) = Gate(AdmissionSettings()).offer(offer(1), now=0.0)

    assert (AdmitReason.NO_ENGINE, 5.0) == (verdict.reason, verdict.retry_after_s)


def test_a_freed_slot_goes_to_who_waits():
    made = gate(1)
    made.offer(offer(1), now=0.0)
    assert AdmitReason.QUEUED is made.offer(offer(2), now=0.0)[0].reason

    (verdict,) = made.finished(Ticket(1), now=3.0)

    assert (2, AdmitReason.TURN, 3.0) == (verdict.ticket, verdict.reason, verdict.waited_s)


def test_higher_classes_go_first():
    made = gate(1)
    made.offer(offer(0), now=0.0)
    for no, priority in enumerate((Priority.BATCH, Priority.DEFAULT, Priority.INTERACTIVE), 1):
        made.offer(offer(no, priority=priority), now=0.0)

    assert [3, 2, 1] == drain(made, [0])


def test_batch_gets_about_one_turn_in_ten():
    made = gate(1)
    made.offer(offer(0), now=0.0)
    for no in range(1, 41):
        made.offer(offer(no, priority=Priority.INTERACTIVE), now=0.0)
    for no in range(101, 105):
        made.offer(offer(no, priority=Priority.BATCH), now=0.0)

    order = drain(made, [0])

    assert [9, 19, 29, 39] == [place for place, no in enumerate(order) if no > 100]


def test_lower_classes_both_get_turns_under_a_flood():
    made = gate(1)
    made.offer(offer(0), now=0.0)
    for no in range(1, 101):
        made.offer(offer(no, priority=Priority.INTERACTIVE), now=0.0)
    for no in range(200, 230):
        made.offer(offer(no, priority=Priority.DEFAULT), now=0.0)
        made.offer(offer(no + 100, priority=Priority.BATCH), now=0.0)

    served = Counter(no // 100 for no in drain(made, [0])[:60])

    assert served[2] >= 10
    assert served[3] >= 5


def test_tenants_of_a_class_share_by_work_not_by_count():
    made = gate(1)
    made.offer(offer(0), now=0.0)
    for no in range(1, 21):
        made.offer(offer(no, tenant="big", work_tokens=1000), now=0.0)
    for no in range(101, 141):
        made.offer(offer(no, tenant="small", work_tokens=100), now=0.0)

    first = drain(made, [0])[:22]

    assert 2 <= sum(no <= 20 for no in first) <= 3


def test_a_newcomer_does_not_wait_behind_the_backlog_of_another_tenant():
    made = gate(1)
    made.offer(offer(0), now=0.0)
    for no in range(1, 500):
        made.offer(offer(no, tenant="busy"), now=0.0)
    made.offer(offer(1000, tenant="new"), now=0.0)

    assert drain(made, [0]).index(1000) <= 1


def test_a_large_request_waits_for_room_and_is_not_overtaken_for_ever():
    made = gate(4)
    for no in range(4):
        made.offer(offer(no), now=0.0)
    made.offer(offer(10, choices=4), now=0.0)
    made.offer(offer(11), now=0.0)

    assert [] == made.finished(Ticket(0), now=1.0)
    for no in (1, 2):
        made.finished(Ticket(no), now=1.0)
    assert [10] == [v.ticket for v in made.finished(Ticket(3), now=1.0)]


def test_a_request_larger_than_the_limit_goes_alone():
    made = gate(2)

    assert made.offer(offer(1, choices=10), now=0.0)[0].is_admitted
    assert not made.offer(offer(2), now=0.0)[0].is_admitted


@pytest.mark.parametrize(
    ("bounds", "tenants", "reason"),
    [
        ({"queue_per_tenant": 2}, ("a", "a", "a"), AdmitReason.TENANT_FULL),
        ({"queue_per_class": 2}, ("a", "b", "c"), AdmitReason.QUEUE_FULL),
    ],
)
def test_full_queues_refuse_with_a_time_to_try_again(bounds, tenants, reason):
    made = gate(1, **bounds)
    made.offer(offer(0), now=0.0)

    verdicts = [made.offer(offer(no, tenant=t), now=0.0)[0] for no, t in enumerate(tenants, 1)]

    assert [AdmitReason.QUEUED, AdmitReason.QUEUED, reason] == [v.reason for v in verdicts]
    assert verdicts[-1].retry_after_s == 1.0


def test_prompts_take_only_so_much_memory_in_all_and_of_one_tenant():
    made = gate(1, prompt_bytes=100, prompt_bytes_per_tenant=60)
    full, queued = AdmitReason.PROMPTS_FULL, AdmitReason.QUEUED

    assert made.offer(offer(0, size=500), now=0.0)[0].is_admitted, "alone it may be of any size"
    assert made.offer(offer(1, size=1), now=0.0)[0].reason is full
    made.finished(Ticket(0), now=1.0)
    seen = [
        made.offer(offer(no, tenant=tenant, size=size), now=1.0)[0].reason
        for no, (tenant, size) in enumerate(
            [("a", 40), ("a", 20), ("a", 1), ("b", 40), ("c", 1)], 2
        )
    ]

    assert [AdmitReason.FREE, queued, full, queued, full] == seen
    made.left(Ticket(3), now=1.0)
    assert made.offer(offer(9, tenant="a", size=20), now=1.0)[0].reason is queued


def test_a_deadline_that_cannot_be_met_is_refused_at_once():
    made = gate(1)
    made.offer(offer(0), now=0.0)
    made.finished(Ticket(0), now=10.0)
    for no in range(1, 4):
        made.offer(offer(no), now=10.0)

    (late,) = made.offer(offer(8, deadline=25.0), now=10.0)
    (risky,) = made.offer(offer(9, deadline=65.0), now=10.0)
    (fine,) = made.offer(offer(10, deadline=81.0), now=10.0)

    assert AdmitReason.TOO_LATE is risky.reason, "the wait may be twice as long as it looks"
    assert (AdmitReason.TOO_LATE, 30.0) == (late.reason, late.retry_after_s)
    assert AdmitReason.QUEUED is fine.reason


def test_nobody_is_let_in_whose_answer_would_come_too_late():
    made = gate(1)
    made.offer(offer(0), now=0.0)
    made.finished(Ticket(0), now=10.0)  # so an answer to as much work takes ten seconds
    made.offer(offer(1), now=10.0)
    long, short = offer(2, deadline=42.0), offer(3, work_tokens=1, deadline=52.0)
    assert [AdmitReason.QUEUED] == [each.reason for each in made.offer(long, now=10.0)]
    assert [AdmitReason.QUEUED] == [each.reason for each in made.offer(short, now=10.0)]
    hopeless = offer(4, deadline=39.0)
    assert [AdmitReason.TOO_LATE] == [each.reason for each in made.offer(hopeless, now=10.0)]

    verdicts = made.finished(Ticket(1), now=35.0)

    assert [(2, AdmitReason.EXPIRED), (3, AdmitReason.TURN)] == [
        (each.ticket, each.reason) for each in verdicts
    ]


def test_a_deadline_that_passes_in_the_queue_is_refused():
    made = gate(1)
    made.offer(offer(0), now=0.0)
    made.offer(offer(1, deadline=5.0), now=0.0)

    assert [] == made.tick(now=4.9)
    (verdict,) = made.tick(now=5.0)

    assert (1, AdmitReason.EXPIRED) == (verdict.ticket, verdict.reason)
    assert 0 == made.waiting


def test_those_who_wait_outlive_a_short_loss_of_all_engines_only():
    made = gate(1)
    made.offer(offer(0), now=0.0)
    made.offer(offer(1), now=0.0)
    made.set_limit(0, now=1.0)

    assert [] == made.tick(now=10.9)
    (verdict,) = made.tick(now=11.0)

    assert (1, AdmitReason.NO_ENGINE) == (verdict.ticket, verdict.reason)


def test_who_leaves_the_queue_frees_the_place():
    made = gate(4)
    for no in range(4):
        made.offer(offer(no), now=0.0)
    made.offer(offer(8, choices=4), now=0.0)
    made.offer(offer(9), now=0.0)
    made.finished(Ticket(0), now=1.0)

    (verdict,) = made.left(Ticket(8), now=2.0)

    assert 9 == verdict.ticket


@pytest.mark.parametrize("method", ["finished", "left"])
def test_unknown_tickets_change_nothing(method):
    assert [] == getattr(gate(), method)(Ticket(77), now=0.0)


EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("offer"),
            st.sampled_from("abc"),
            st.sampled_from(Priority),
            st.integers(1, 6),
            st.integers(1, 40),
        ),
        st.tuples(st.sampled_from(("finish", "leave")), st.integers(0, 60)),
        st.tuples(st.just("limit"), st.integers(0, 8)),
        st.tuples(st.just("tick"), st.integers(0, 12)),
    ),
    max_size=80,
)


class Book:
    """What an observer of the verdicts believes."""

    def __init__(self) -> None:
        self.made = Gate(
            AdmissionSettings(
                queue_per_class=8, queue_per_tenant=4, prompt_bytes=20, prompt_bytes_per_tenant=12
            )
        )
        self.choices: dict[int, int] = {}
        self.inside: set[int] = set()
        self.waiting: set[int] = set()
        self.limit = 0
        self.now = 0.0

    def take(self, verdicts: list[Verdict], *, may_grow: bool = True) -> None:
        for verdict in verdicts:
            self.waiting.discard(verdict.ticket)
            if verdict.is_admitted:
                assert may_grow
                self.inside.add(verdict.ticket)
            elif not verdict.is_refused:
                self.waiting.add(verdict.ticket)

    def play(self, event) -> None:
        match event:
            case ("offer", tenant, priority, choices, patience):
                no = len(self.choices)
                self.choices[no] = choices
                deadline = self.now + patience
                self.take(
                    self.made.offer(
                        offer(
                            no,
                            tenant=tenant,
                            priority=priority,
                            choices=choices,
                            size=choices - 1,
                            deadline=deadline,
                        ),
                        now=self.now,
                    )
                )
            case ("finish", no):
                self.inside.discard(no)
                self.take(self.made.finished(Ticket(no), now=self.now))
            case ("leave", no):
                self.waiting.discard(no)
                self.take(self.made.left(Ticket(no), now=self.now))
            case ("limit", limit):
                self.limit = limit
                self.take(self.made.set_limit(limit, now=self.now))
            case ("tick", seconds):
                self.now += seconds
                self.take(self.made.tick(now=self.now))
            case _:
                raise AssertionError(event)


@given(EVENTS)
def test_counts_always_agree_with_the_verdicts_and_return_to_nothing(events):
    book = Book()
    for event in events:
        before = set(book.inside)
        book.play(event)
        assert sum(book.choices[no] for no in book.inside) == book.made.in_flight
        assert len(book.waiting) == book.made.waiting
        held = book.inside | book.waiting
        assert sum(book.choices[no] - 1 for no in held) == book.made._memory.total_bytes
        fresh = book.inside - before
        alone = len(book.inside) == 1
        assert not fresh or book.made.in_flight <= book.limit or alone

    for no in list(book.choices):
        book.play(("leave", no))
    for _ in range(2):
        for no in list(book.inside):
            book.play(("finish", no))

    assert (0, 0) == (book.made.in_flight, book.made.waiting)
    assert (0, {}) == (book.made._memory.total_bytes, book.made._memory._by_tenant)


@given(EVENTS)
def test_nobody_waits_while_there_is_room_for_the_next(events):
    book = Book()
    for event in events:
        book.play(event)
        if book.waiting:
            assert book.limit == 0 or book.made.in_flight > 0


def test_more_than_a_thousand_patient_requests_of_a_tenant_are_offline_work():
    rule = OfflineRule(AdmissionSettings())
    tenant = TenantId("a")

    answers = [rule.is_offline(tenant, timeout_s=600.0, now=float(i) / 10) for i in range(1002)]

    assert [False] * 1000 + [True, True] == answers
    assert not rule.is_offline(TenantId("b"), timeout_s=600.0, now=100.0)


@pytest.mark.parametrize("timeout_s", [None, 30.0, 300.0])
def test_impatient_requests_never_count_as_offline(timeout_s):
    rule = OfflineRule(AdmissionSettings(offline_requests=1))

    assert not any(rule.is_offline(TenantId("a"), timeout_s=timeout_s, now=0.0) for _ in range(9))


def test_offline_work_is_forgotten_after_the_window():
    rule = OfflineRule(AdmissionSettings(offline_requests=3))
    for _ in range(10):
        rule.is_offline(TenantId("a"), timeout_s=600.0, now=0.0)

    assert not rule.is_offline(TenantId("a"), timeout_s=600.0, now=301.0)
