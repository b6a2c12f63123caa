"""What keeps the cached prefixes of tenants apart: a salt in the hash of a prompt's first block, and by the chain in all. Pure.

Whoever may reuse another's prefix can ask what the other has asked: the time to the first token and `cached_tokens` answer. So a prefix is
found only under the salt that it was computed under.

Why a tenant can't come by another's salt: it is a hash under a secret, the digest of that tenant's first API key in the keys file, which is
that of 256 random bits. It names neither the key nor its digest to whoever sees a salt on the bus. Nor would a salt help: no request
names one, since the gateway alone puts it into a submit. All gateways read the same keys file, so that they salt alike without a secret
of their own; a tenant's prefixes outlive restarts and new keys, and are computed once more when its first key is removed.
"""

from __future__ import annotations

import hashlib

from shared.ids import TenantId

SALT_BYTES = 16
"""No two tenants have the same salt, but with a chance of one in 2^64 at 2^32 tenants."""
_PURPOSE = b"headrace-prefix"
"""Keeps these hashes apart from any others under the same secret."""


def prefix_salt(tenant: TenantId, secret: bytes) -> str:
    """Return the salt of a tenant. `secret`: bytes that no tenant knows, the same for all gateways."""
    return hashlib.blake2b(
        tenant.encode(), key=secret, digest_size=SALT_BYTES, person=_PURPOSE
    ).hexdigest()
