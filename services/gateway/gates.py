"""One gate per service, and the class that a request really gets. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import override

from services.gateway.admission.gate import Gate
from services.gateway.admission.offline import OfflineRule
from services.gateway.admission.verdict import AdmissionSettings, Offer, Ticket, Verdict
from shared.ids import TenantId
from shared.messages import Priority

MAX_GATES = 2048
"""Beyond it those that nobody needs now are forgotten: services come from the names in heartbeats."""


class Gates:
    """The gates by service; made when a service is first seen."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        self._gates: dict[str, Gate] = {}
        self._service_of: dict[Ticket, str] = {}
        self._offline = OfflineRule(settings)
        self._last_ticket = 0

    @override
    def __repr__(self) -> str:
        return f"<Gates {self._gates}>"

    @property
    def in_flight(self) -> int:
        """Choices let in and not ended, over all services."""
        return sum(gate.in_flight for gate in self._gates.values())

    @property
    def waiting(self) -> int:
        """Requests that wait, over all services."""
        return sum(gate.waiting for gate in self._gates.values())

    def by_service(self) -> Mapping[str, Gate]:
        """Return the gates, to be looked at only."""
        return self._gates

    def next_ticket(self) -> Ticket:
        """Return a ticket never used before."""
        self._last_ticket += 1
        return Ticket(self._last_ticket)

    def class_of(
        self, tenant: TenantId, asked: Priority | None, *, timeout_s: float | None, now: float
    ) -> Priority:
        """Return the class of a request: what it asks for, unless its tenant sends offline work."""
        if self._offline.is_offline(tenant, timeout_s=timeout_s, now=now):
            return Priority.BATCH
        return asked or Priority.DEFAULT

    def offer(self, service: str, offer: Offer, *, now: float) -> list[Verdict]:
        """See `Gate.offer`."""
        self._service_of[offer.ticket] = service
        return self._settle(self._gate(service).offer(offer, now=now))

    def end(self, ticket: Ticket, *, now: float) -> list[Verdict]:
        """Take back what a request holds or its place in the queue. Unknown tickets are ignored."""
        service = self._service_of.pop(ticket, None)
        if service is None:
            return []
        gate = self._gates[service]
        return self._settle([*gate.left(ticket, now=now), *gate.finished(ticket, now=now)])

    def set_limit(self, service: str, limit: int, *, now: float) -> list[Verdict]:
        """See `Gate.set_limit`."""
        return self._settle(self._gate(service).set_limit(limit, now=now))

    def tick(self, *, now: float) -> list[Verdict]:
        """See `Gate.tick`."""
        return self._settle([v for gate in self._gates.values() for v in gate.tick(now=now)])

    def _gate(self, service: str) -> Gate:
        gate = self._gates.get(service)
        if gate is None:
            if len(self._gates) >= MAX_GATES:
                self._gates = {name: one for name, one in self._gates.items() if not one.is_idle}
            gate = self._gates[service] = Gate(self._settings)
        return gate

    def _settle(self, verdicts: list[Verdict]) -> list[Verdict]:
        for verdict in verdicts:
            if verdict.is_refused:
                self._service_of.pop(verdict.ticket, None)
        return verdicts
