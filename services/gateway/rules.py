"""What declared services say of their requests: defaults, class, who may ask, who shares. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from services.gateway.sharing import SharingSettings
from shared.entry import Entry
from shared.errors import UserError
from shared.ids import ServiceName
from shared.messages import Priority, ServiceRecord
from shared.spec.model import SamplingConfig
from shared.spec.reading import from_document

NO_DEFAULTS = SamplingConfig()


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What one service says."""

    sampling: SamplingConfig = NO_DEFAULTS
    """For fields that a request leaves out."""
    priority: Priority | None = None
    """Class of requests that do not say; None: their key's, or the default."""
    tenants: frozenset[str] = frozenset()
    """Who may ask; empty: all."""
    shares: bool = False
    """Whether tenants may reuse each other's computed prefixes."""

    def admits(self, tenant: str) -> bool:
        """Whether a tenant may use the service."""
        return not self.tenants or tenant in self.tenants


ANY = Rule()


class Rules:
    """The rules of all services; those of a service that nobody declared say nothing."""

    def __init__(self, sharing: SharingSettings) -> None:
        self._sharing = sharing
        self._rules: dict[str, Rule] = {}
        self._read: dict[str, int] = {}
        """Revision of the record that a rule was read from."""
        self.unreadable: dict[str, str] = {}
        """Why records could not be read; what was known of their services before holds on."""

    def of(self, service: str) -> Rule:
        """Return what a service says."""
        return self._rules.get(service, ANY)

    def sampling(self, service: str) -> SamplingConfig:
        """Return a service's defaults."""
        return self.of(service).sampling

    def salt(self, own: str, service: str) -> str:
        """Return what keeps a tenant's computed prefixes apart; empty: nothing. See `SharingSettings.salt`."""
        return "" if self.of(service).shares else self._sharing.salt(own, service)

    def visible(self, services: Iterable[ServiceName], tenant: str) -> list[ServiceName]:
        """Return those services that a tenant may use."""
        return [service for service in services if self.of(service).admits(tenant)]

    def take(self, entries: Mapping[str, Entry[ServiceRecord]]) -> None:
        """Take the records as they are now."""
        for gone in self._rules.keys() - entries.keys():
            del self._rules[gone]
            self._read.pop(gone, None)
        self.unreadable = {}
        for service, entry in entries.items():
            if self._read.get(service) == entry.revision:
                continue
            try:
                self._rules[service] = _rule(entry.record)
            except UserError as error:
                self.unreadable[service] = str(error)
            else:
                self._read[service] = entry.revision


def _rule(record: ServiceRecord) -> Rule:
    spec = from_document(record.spec)
    return Rule(
        sampling=spec.sampling,
        priority=None if spec.priority == "default" else Priority(spec.priority),
        tenants=frozenset(spec.api_keys),
        shares=spec.kv.share_across == "service",
    )
