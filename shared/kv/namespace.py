"""Which stored bytes may be read by whom: a digest over all that decides about the bytes of a value.

Two engines share values only where every field is the same; a new model, dtype, layout, vLLM version, block size or tensor-parallel shape
is another namespace, so that what an older one left is a miss. Tenants and adapters are in the block hashes themselves (vLLM's extra keys).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

DIGEST_CHARS = 32


def digest(fields: Mapping[str, str]) -> str:
    """Return the namespace of these fields, whatever their order."""
    return hashlib.sha256(msgspec.json.encode(sorted(fields.items()))).hexdigest()[:DIGEST_CHARS]
