"""What holds for the traces of each service: what it was declared with, else what the file of policies says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from shared.entry import Entry
from shared.errors import UserError
from shared.ids import ServiceName
from shared.messages import ServiceRecord
from shared.observability import Observability, Policies
from shared.spec.model import ObservabilitySpec
from shared.spec.reading import from_document


class PolicyOf(Protocol):
    """Knows the policy of each service."""

    def of(self, service: ServiceName) -> Observability:
        """Return what holds for a service."""
        ...


class LivePolicies:
    """Policies that follow the records of services."""

    def __init__(self, base: Policies) -> None:
        self._base = base
        self._declared: dict[ServiceName, Observability] = {}

    def of(self, service: ServiceName) -> Observability:
        """See `PolicyOf`."""
        return self._declared.get(service) or self._base.of(service)

    def take(self, entries: Mapping[str, Entry[ServiceRecord]]) -> None:
        """Take the records as they are now; one that cannot be read says nothing."""
        found: dict[ServiceName, Observability] = {}
        for entry in entries.values():
            try:
                said = from_document(entry.record.spec).observability
            except UserError:
                continue
            if said != ObservabilitySpec(custom_metrics=said.custom_metrics):
                found[entry.record.service] = _policy(said)
        self._declared = found


def _policy(said: ObservabilitySpec) -> Observability:
    return Observability(
        sampling_rate=said.sampling_rate,
        max_spans=said.max_spans,
        export_timeout_s=said.export_timeout_s,
        sensitive=said.sensitive,
        slow_s=said.slow_s,
        stages=said.trace_stages,
    )
