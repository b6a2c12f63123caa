"""Who may reuse whose computed prefixes: the salt that a submit carries. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec


class SharingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether tenants profit from each other's prompts, and by that learn of them."""

    prefixes: Literal["tenant", "service"] = "tenant"
    """`tenant`: a prefix that one tenant had computed is found by its own requests only. `service`: by all; then the time to the first
    token and `cached_tokens` tell anybody with a key whether somebody sent the same text before. Without API keys all are one tenant."""
    services: tuple[str, ...] = ()
    """Services that are shared by all tenants whatever `prefixes` says, such as one that answers from public documents only."""

    def salt(self, own: str, service: str) -> str:
        """Return the salt of a request; empty: none. `own`: that of its tenant."""
        return "" if self.prefixes == "service" or service in self.services else own
