"""How much memory the prompts of one service's requests take, in all and by tenant. Counts; who is refused is the gate's to say."""

from __future__ import annotations

from typing_extensions import override

from services.gateway.admission.verdict import AdmissionSettings, Offer
from shared.ids import TenantId


class PromptMemory:
    """Every offer that was added is removed once, when its request is over."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        self._by_tenant: dict[TenantId, int] = {}
        self.total_bytes = 0

    @override
    def __repr__(self) -> str:
        return f"<PromptMemory {self.total_bytes} bytes of {len(self._by_tenant)} tenants>"

    def has_room(self, offer: Offer) -> bool:
        """Whether one more may come; without any other it always may."""
        size, own = offer.prompt_bytes, self._by_tenant.get(offer.tenant, 0)
        settings = self._settings
        return (not own or own + size <= settings.prompt_bytes_per_tenant) and (
            not self.total_bytes or self.total_bytes + size <= settings.prompt_bytes
        )

    def add(self, offer: Offer) -> None:
        """Count an offer in."""
        if offer.prompt_bytes:
            self.total_bytes += offer.prompt_bytes
            own = self._by_tenant.get(offer.tenant, 0)
            self._by_tenant[offer.tenant] = own + offer.prompt_bytes

    def remove(self, offer: Offer) -> None:
        """Count an offer out."""
        if offer.prompt_bytes:
            self.total_bytes -= offer.prompt_bytes
            self._by_tenant[offer.tenant] -= offer.prompt_bytes
            if not self._by_tenant[offer.tenant]:
                del self._by_tenant[offer.tenant]
