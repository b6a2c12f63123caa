"""The gate of one service: in flight at most what the engines can hold, the rest waits in bounded queues or is refused with the reason.

Between classes: strict order (interactive, default, batch), except that a waiting class is passed over only so many times in a row.
Within a class: a fair share between tenants. A large request waits for room and holds back those behind it, else it would wait for ever.
"""

from __future__ import annotations

import math

from typing_extensions import override

from services.gateway.admission.fairqueue import FairQueue
from services.gateway.admission.memory import PromptMemory
from services.gateway.admission.pace import Pace
from services.gateway.admission.verdict import (
    AdmissionSettings,
    AdmitReason,
    Offer,
    Ticket,
    Verdict,
)
from shared.messages import Priority

ORDER = tuple(Priority)
"""Highest class first: the order of the enum."""

RETRY_MIN_S, RETRY_MAX_S = 1.0, 60.0


class Inside:
    """A request that was let in."""

    __slots__ = ("offer", "since")

    def __init__(self, offer: Offer, since: float) -> None:
        self.offer = offer
        self.since = since


class Gate:
    """State of admission for one service. Every method returns the verdicts that follow from the event, at most one a ticket and call."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        self._queues = {priority: FairQueue() for priority in ORDER}
        self._passed = dict.fromkeys(ORDER, 0)
        self._patience = {
            Priority.INTERACTIVE: math.inf,
            Priority.DEFAULT: settings.default_passed_over,
            Priority.BATCH: settings.batch_passed_over,
        }
        self._inside: dict[Ticket, Inside] = {}
        self._waiting: dict[Ticket, Offer] = {}
        self._memory = PromptMemory(settings)
        self._pace = Pace()
        self._limit = 0
        self._empty_since: float | None = None
        self.in_flight = 0
        """Choices that were let in and have not ended."""

    @override
    def __repr__(self) -> str:
        return f"<Gate {self.in_flight}/{self._limit} in flight, {len(self._waiting)} waiting>"

    @property
    def waiting(self) -> int:
        """Requests that wait, over all classes."""
        return len(self._waiting)

    def waiting_in(self, priority: Priority) -> int:
        """Return how many requests wait in a class."""
        return len(self._queues[priority])

    def offer(self, offer: Offer, *, now: float) -> list[Verdict]:
        """Let in, queue or refuse a new request."""
        if self._limit == 0:
            retry = self._settings.no_engine_retry_s
            return [Verdict(ticket=offer.ticket, reason=AdmitReason.NO_ENGINE, retry_after_s=retry)]
        if not self._memory.has_room(offer):
            return [self._refused(offer, AdmitReason.PROMPTS_FULL)]
        if not self._waiting and self._fits(offer.choices):
            self._memory.add(offer)
            return [self._let_in(offer, AdmitReason.FREE, since=now, now=now)]
        refusal = self._refusal(offer, now=now)
        if refusal is not None:
            return [refusal]
        self._memory.add(offer)
        self._waiting[offer.ticket] = offer
        self._queues[offer.priority].push(offer, now=now)
        served = self._serve(now=now)
        if any(verdict.ticket == offer.ticket for verdict in served):
            return served
        return [Verdict(ticket=offer.ticket, reason=AdmitReason.QUEUED), *served]

    def finished(self, ticket: Ticket, *, now: float) -> list[Verdict]:
        """Take back the slots of a request that ended, however it ended. Unknown tickets are ignored."""
        inside = self._inside.pop(ticket, None)
        if inside is None:
            return []
        self.in_flight -= inside.offer.choices
        self._memory.remove(inside.offer)
        self._pace.held(now - inside.since, work_tokens=_work_of_choice(inside.offer))
        return self._serve(now=now)

    def left(self, ticket: Ticket, *, now: float) -> list[Verdict]:
        """Remove a request whose client went away while it waited. Unknown tickets are ignored."""
        offer = self._waiting.pop(ticket, None)
        if offer is None:
            return []
        self._queues[offer.priority].remove(offer)
        self._memory.remove(offer)
        return self._serve(now=now)

    def set_limit(self, limit: int, *, now: float) -> list[Verdict]:
        """Take a new number of choices that may be in flight; 0 where no engine is ready."""
        if limit == 0 and self._empty_since is None:
            self._empty_since = now
        elif limit > 0:
            self._empty_since = None
        self._limit = limit
        return self._serve(now=now)

    def tick(self, *, now: float) -> list[Verdict]:
        """Refuse those who wait in vain: too late for an answer, or no engine for longer than the grace."""
        empty_since = self._empty_since
        if empty_since is not None and now - empty_since >= self._settings.no_engine_grace_s:
            reason, doomed = AdmitReason.NO_ENGINE, list(self._waiting.values())
        else:
            reason = AdmitReason.EXPIRED
            doomed = [offer for offer in self._waiting.values() if self._is_late(offer, now=now)]
        verdicts = [self._throw_out(offer, reason, now=now) for offer in doomed]
        return verdicts + self._serve(now=now) if verdicts else verdicts

    def _throw_out(self, offer: Offer, reason: AdmitReason, *, now: float) -> Verdict:
        del self._waiting[offer.ticket]
        self._queues[offer.priority].remove(offer)
        self._memory.remove(offer)
        retry = (
            self._settings.no_engine_retry_s
            if reason is AdmitReason.NO_ENGINE
            else self._retry_after_s(offer)
        )
        return Verdict(ticket=offer.ticket, reason=reason, retry_after_s=retry)

    def _fits(self, choices: int) -> bool:
        """Whether there is room; what is larger than the limit goes alone."""
        return self.in_flight + choices <= self._limit or (self._limit > 0 and self.in_flight == 0)

    def _is_late(self, offer: Offer, *, now: float) -> bool:
        """Whether an answer that is begun at `now` would not be whole in time: an engine would work for nobody."""
        hold_s = self._pace.hold_s(work_tokens=_work_of_choice(offer))
        return now + hold_s >= offer.deadline

    def _let_in(self, offer: Offer, reason: AdmitReason, *, since: float, now: float) -> Verdict:
        self._inside[offer.ticket] = Inside(offer, now)
        self.in_flight += offer.choices
        return Verdict(ticket=offer.ticket, reason=reason, waited_s=now - since)

    def _refusal(self, offer: Offer, *, now: float) -> Verdict | None:
        queue = self._queues[offer.priority]
        if queue.waiting_of(offer.tenant) >= self._settings.queue_per_tenant:
            reason = AdmitReason.TENANT_FULL
        elif len(queue) >= self._settings.queue_per_class:
            reason = AdmitReason.QUEUE_FULL
        elif self._is_late(offer, now=now + (self._wait_s(offer) or 0.0)):
            reason = AdmitReason.TOO_LATE
        else:
            return None
        return self._refused(offer, reason)

    def _refused(self, offer: Offer, reason: AdmitReason) -> Verdict:
        return Verdict(ticket=offer.ticket, reason=reason, retry_after_s=self._retry_after_s(offer))

    def _wait_s(self, offer: Offer) -> float | None:
        """Estimate the wait of a newcomer: all of the higher classes goes first, and of its own class what the fair share puts
        before it.
        """
        queue = self._queues[offer.priority]
        higher = sum(self._queues[p].choices for p in ORDER[: ORDER.index(offer.priority)])
        own_turns = (queue.waiting_of(offer.tenant) + 1) * max(1, queue.tenants)
        share = queue.choices * own_turns // max(1, len(queue))
        ahead = higher + min(queue.choices, share) + offer.choices
        return self._pace.wait_s(
            choices=ahead - max(0, self._limit - self.in_flight), limit=self._limit
        )

    def _retry_after_s(self, offer: Offer) -> float:
        wait_s = self._wait_s(offer)
        return RETRY_MIN_S if wait_s is None else min(RETRY_MAX_S, max(RETRY_MIN_S, wait_s))

    def _serve(self, *, now: float) -> list[Verdict]:
        """Let in whoever's turn it is, as long as there is room."""
        verdicts: list[Verdict] = []
        while self._waiting:
            priority, reason = self._turn()
            queue = self._queues[priority]
            head = queue.peek()
            assert head is not None
            if self._is_late(head.offer, now=now):
                verdicts.append(self._throw_out(head.offer, AdmitReason.EXPIRED, now=now))
                continue
            if not self._fits(head.offer.choices):
                break
            queue.take()
            del self._waiting[head.offer.ticket]
            self._note_turn(priority)
            verdicts.append(self._let_in(head.offer, reason, since=head.since, now=now))
        return verdicts

    def _turn(self) -> tuple[Priority, AdmitReason]:
        """Return whose turn it is: a class that was passed over too often, else the highest that waits."""
        waiting = [priority for priority in ORDER if len(self._queues[priority])]
        overdue = max(waiting, key=lambda p: self._passed[p] / self._patience[p])
        if self._passed[overdue] >= self._patience[overdue]:
            return overdue, AdmitReason.OVERDUE
        return waiting[0], AdmitReason.TURN

    def _note_turn(self, served: Priority) -> None:
        self._passed[served] = 0
        for priority in ORDER:
            if priority is not served:
                waits = len(self._queues[priority]) > 0
                self._passed[priority] = self._passed[priority] + 1 if waits else 0


def _work_of_choice(offer: Offer) -> int:
    return offer.work_tokens // max(1, offer.choices)
