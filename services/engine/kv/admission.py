"""Which blocks go to disk: those of long contexts, and those of prefixes that came twice.

A block that is read once costs a write and wins nothing; a long context is worth it even so, since computing it again takes longest.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from services.engine.kv.seen import Seen


class Interest(msgspec.Struct, frozen=True):
    """What is known of a request's blocks when it comes."""

    prompt_tokens: int = 0
    seen_tokens: int = 0
    """How far its prompt began like one before it."""


class Admission:
    """Looks at each request once."""

    def __init__(self, min_tokens: int, *, seen_blocks: int) -> None:
        """`min_tokens`: all blocks of longer contexts are admitted. `seen_blocks`: blocks of shorter ones that are remembered."""
        self._min_tokens = min_tokens
        self._seen: Seen[bytes] = Seen(seen_blocks)

    def look(
        self, prompt_tokens: int, hashes: Sequence[bytes], *, tokens_per_hash: int
    ) -> Interest:
        """Return what a request is worth. `hashes`: of the whole blocks of its prompt; each stands for all before it, too."""
        if self.is_long(prompt_tokens):
            # What it brings is kept anyway.
            return Interest(prompt_tokens)
        seen = 0
        is_prefix = True
        for each in hashes:
            was_seen = self._seen.note(each)
            is_prefix = is_prefix and was_seen
            seen += is_prefix
        return Interest(prompt_tokens, seen * tokens_per_hash)

    def is_long(self, tokens: int) -> bool:
        """Return whether a context is kept for its length alone."""
        return tokens > self._min_tokens

    def admits(self, interest: Interest, end_token: int) -> bool:
        """Return whether a block goes to disk. `end_token`: where it ends in the request, counted from 1."""
        return end_token <= interest.seen_tokens or self.is_long(
            max(interest.prompt_tokens, end_token)
        )
