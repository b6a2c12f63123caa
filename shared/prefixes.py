"""The beginning of a prompt as a chain of hashes, so that gateways and engines can speak of prefixes without tokens and without text.

The canonical text of a chat is its tools, where the model gets to see them, and then its messages as the gateway writes them (one form
of JSON, fixed order of fields) without the closing bracket: the next turn of a conversation begins with it. That of a raw prompt is its
text, that of a tokenized one its token ids. Two prompts share a piece's hash only if kind, tools, tenant's salt and all text before the
end of that piece are the same.

Pieces grow with their position: `PIECE_BYTES` up to `EVEN_BYTES`, then a 32nd of what lies before. So a prompt of any length has a few
hundred pieces at most, and what a chain overlooks of a common beginning is below 3% of it, or 256 bytes. A fixed size would need
thousands of hashes for a long document, or overlook most of a short system prompt (`bench/warmth_cost.py` has the figures).

XXH3 is no cryptographic hash. What a collision could do is to send a prompt to an engine that has to compute it: no text, no block and no
answer is ever looked up by these hashes.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

from xxhash import xxh3_64_intdigest

from shared.messages import Chain, ChatPrompt, Prompt, TextPrompt, TokensPrompt

PIECE_BYTES = 256
"""About 64 tokens of English: four blocks of 16."""
EVEN_BYTES = 8192
"""Pieces up to here have `PIECE_BYTES`."""
GROWTH = 32
"""Behind it a piece has this fraction of what lies before it, in whole `PIECE_BYTES`."""
MAX_TEXT_BYTES = 64 << 20
"""Text behind this is in no piece."""
HASH_BYTES = 8

_CHAT, _TEXT, _TOKENS = 1, 2, 3
_MASK = (1 << 64) - 1
_token_ids = Struct("<I").pack


def _ends() -> list[int]:
    ends, end = [], 0
    while end < MAX_TEXT_BYTES:
        grown = end // GROWTH // PIECE_BYTES * PIECE_BYTES if end >= EVEN_BYTES else 0
        end += max(PIECE_BYTES, grown)
        ends.append(end)
    return ends


ENDS: Sequence[int] = _ends()
"""Where the pieces of a text end, tools not counted."""


@lru_cache(maxsize=4096)
def salt_of(tenant: str, scope: str) -> int:
    """Return the seed of a tenant's chains; `scope` is the service, so that one key's prompts at two services differ too."""
    digest = hashlib.blake2b(
        b"%d %s %s" % (len(scope.encode()), scope.encode(), tenant.encode()),
        digest_size=HASH_BYTES,
        person=b"hr-warmth",
    )
    return int.from_bytes(digest.digest(), "little")


def chain_of(prompt: Prompt, salt: int) -> Chain:
    """Return the chain of a prompt."""
    kind, head, text = canonical(prompt)
    return chain_of_text(text, seed=(salt + kind) & _MASK, head=head)


def canonical(prompt: Prompt) -> tuple[int, bytes, bytes]:
    """Return a number for the kind of a prompt, its tools as far as the model sees them, and the rest of its canonical text."""
    match prompt:
        case ChatPrompt():
            tools = prompt.tools_json if prompt.tool_choice != "none" else None
            return _CHAT, tools or b"", prompt.messages_json[:-1]
        case TextPrompt():
            return _TEXT, b"", prompt.text.encode()
        case TokensPrompt():
            return _TOKENS, b"", _packed(prompt.token_ids)


def chain_of_text(text: bytes, *, seed: int, head: bytes = b"") -> Chain:
    """Return the chain of a canonical text behind a head."""
    hashes: list[int] = []
    if head:
        seed = xxh3_64_intdigest(head, seed)
        hashes.append(seed)
    start = 0
    for end in ENDS[: bisect_right(ENDS, len(text))]:
        seed = xxh3_64_intdigest(text[start:end], seed)
        hashes.append(seed)
        start = end
    return Chain(len(text) + len(head), len(head), packed(hashes))


def packed(hashes: Sequence[int]) -> bytes:
    """Return hashes as they travel."""
    return Struct(f"<{len(hashes)}Q").pack(*hashes)


def unpacked(hashes: bytes) -> tuple[int, ...]:
    """Return hashes that travelled. Trailing bytes that are no whole hash are ignored."""
    count = len(hashes) // HASH_BYTES
    return Struct(f"<{count}Q").unpack(hashes[: count * HASH_BYTES])


def ends_of(chain: Chain, count: int) -> list[int]:
    """Return where the first `count` pieces of a chain end, in bytes of the canonical text."""
    head = chain.head_bytes
    if not head:
        return list(ENDS[:count])
    return [head, *(head + end for end in ENDS[: max(0, count - 1)])][:count]


def end_of(chain: Chain, count: int) -> int:
    """Return where the piece with number `count` (from 1) ends; 0 for none."""
    if not count:
        return 0
    if not chain.head_bytes:
        return ENDS[count - 1]
    return chain.head_bytes + (ENDS[count - 2] if count > 1 else 0)


def _packed(token_ids: list[int]) -> bytes:
    # What no tokenizer has must not break the chain: the engine refuses it, with a word.
    return b"".join([_token_ids(token & 0xFFFF_FFFF) for token in token_ids])
