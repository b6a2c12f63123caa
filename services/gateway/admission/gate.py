"""The gate of one service: in flight at most what the engines can hold, the rest waits in bounded queues or is refused with the reason.

Between classes: see `turns.py`. Within a class: a fair share between tenants. A large request waits for room and holds back those behind
it, else it would wait for ever.

Who waits is to be served: nobody enters a queue whose turn would come too late even if the wait is longer than it looks, and who is in one
is refused as soon as it looks too long as it is.
"""

from __future__ import annotations

from typing_extensions import override

from services.gateway.admission.fairqueue import FairQueue
from services.gateway.admission.memory import PromptMemory
from services.gateway.admission.pace import Pace
from services.gateway.admission.turns import ORDER, Turns
from services.gateway.admission.verdict import (
    AdmissionSettings,
    AdmitReason,
    Offer,
    Ticket,
    Verdict,
)
from shared.messages import Priority

RETRY_MIN_S, RETRY_MAX_S = 1.0, 60.0
WAIT_MARGIN = 2.0
"""How many times longer than estimated a newcomer's wait may get: who waits is still in time when more arrives, or answers get longer."""


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
        self._turns = Turns(settings)
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

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in, nothing waits, and nothing may come in: it can be forgotten."""
        return not (self._limit or self._inside or self._waiting)

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
            doomed = [offer for priority in ORDER for offer in self._hopeless(priority, now=now)]
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
        elif self._is_late(offer, now=now + WAIT_MARGIN * self._newcomers_wait_s(offer)):
            reason = AdmitReason.TOO_LATE
        else:
            return None
        return self._refused(offer, reason)

    def _refused(self, offer: Offer, reason: AdmitReason) -> Verdict:
        return Verdict(ticket=offer.ticket, reason=reason, retry_after_s=self._retry_after_s(offer))

    def _hopeless(self, priority: Priority, *, now: float) -> list[Offer]:
        """Return who of a class will be too late by the present estimate, each as if those before it that are too late were gone."""
        queue = self._queues[priority]
        hopeless: list[Offer] = []
        longest_s = self._wait_s(priority, choices=queue.choices)
        for line in queue.lines():
            place = 1
            for offer in line:
                # Most are in time even at the end of the queue, which is quickly seen.
                if self._is_late(offer, now=now + longest_s) and self._is_late(
                    offer, now=now + self._wait_s(priority, choices=self._before(offer, place))
                ):
                    hopeless.append(offer)
                else:
                    place += 1
        return hopeless

    def _newcomers_wait_s(self, offer: Offer) -> float:
        queue = self._queues[offer.priority]
        before = self._before(offer, queue.waiting_of(offer.tenant)) + offer.choices
        return self._wait_s(offer.priority, choices=before)

    def _before(self, offer: Offer, place: int) -> int:
        """Estimate the choices of its class that the fair share lets in until a place of the tenant's line has had its turn."""
        queue = self._queues[offer.priority]
        requests = len(queue)
        return queue.choices * min(requests, place * max(1, queue.tenants)) // max(1, requests)

    def _wait_s(self, priority: Priority, *, choices: int) -> float:
        """Estimate the time until so many choices of a class were let in; 0 while nothing is known: without an engine, or a pace."""
        if self._limit == 0:
            return 0.0
        higher = sum(self._queues[p].choices for p in ORDER[: ORDER.index(priority)])
        turns = self._turns.until(priority, own=choices, higher=higher)
        free = max(0, self._limit - self.in_flight)
        return self._pace.wait_s(choices=turns - free, limit=self._limit)

    def _retry_after_s(self, offer: Offer) -> float:
        return min(RETRY_MAX_S, max(RETRY_MIN_S, self._newcomers_wait_s(offer)))

    def _serve(self, *, now: float) -> list[Verdict]:
        """Let in whoever's turn it is, as long as there is room."""
        verdicts: list[Verdict] = []
        while self._waiting:
            priority, reason = self._turns.next(self._classes_waiting())
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
            self._turns.had(priority, still_waiting=self._classes_waiting())
            verdicts.append(self._let_in(head.offer, reason, since=head.since, now=now))
        return verdicts

    def _classes_waiting(self) -> list[Priority]:
        return [priority for priority in ORDER if len(self._queues[priority])]


def _work_of_choice(offer: Offer) -> int:
    return offer.work_tokens // max(1, offer.choices)
