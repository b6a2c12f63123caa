"""The fake engine's prefix cache: which blocks of prompts lie in its pool, and what it tells of them. Pure.

Blocks of ended prompts stay until their place is needed; those used longest ago go first, the end of a prompt before its beginning.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from typing_extensions import override
from xxhash import xxh3_64_intdigest

from services.engine.warmth.blocks import BlockNews, Moved, prompt_blocks
from shared.messages import WARM_L1, Prompt
from shared.prefixes import canonical, packed

_BYTES_PER_TOKEN = 4


def block_hashes(prompt: Prompt, *, block_tokens: int, salt: int = 0) -> list[int]:
    """Return the names of a prompt's full blocks, by the fake tokenizer: four bytes a token."""
    kind, head, text = canonical(prompt)
    whole, size = head + text, block_tokens * _BYTES_PER_TOKEN
    seed, hashes = salt ^ kind, []
    for end in range(size, len(whole) + 1, size):
        seed = xxh3_64_intdigest(whole[end - size : end], seed)
        hashes.append(seed)
    return hashes


class PrefixCache:
    """Blocks by name, and how many running jobs use each."""

    def __init__(self, *, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._used: Counter[int] = Counter()
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Blocks that nobody uses, the oldest first."""
        self._moved: list[Moved] = []
        self._prompts: list[tuple[str, int, Sequence[int]]] = []

    @override
    def __repr__(self) -> str:
        return f"<PrefixCache {len(self._used)} used, {len(self._idle)} idle>"

    def found_tokens(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """Return how many tokens of a prompt are there; the last one is always computed, since the first word comes of it."""
        found = 0
        for name in hashes:
            if name not in self._used and name not in self._idle:
                break
            found += 1
        return min(found * self._block_tokens, prompt_tokens - 1)

    def hold(self, hashes: Sequence[int]) -> None:
        """Keep the blocks of a prompt that are there, while a job with it runs."""
        for name in hashes:
            if name in self._used or name in self._idle:
                self._idle.pop(name, None)
                self._used[name] += 1

    def fill(self, key: str, hashes: Sequence[int], prompt_tokens: int, *, held: int) -> None:
        """Note that a prompt is computed; `held`: how many of its blocks the job holds already."""
        for name in hashes[held:]:
            self._idle.pop(name, None)
            self._used[name] += 1
        self._prompts.append((key, prompt_tokens, hashes))

    def release(self, hashes: Sequence[int]) -> None:
        """Note that a job let go of these blocks."""
        for name in reversed(hashes):
            self._used[name] -= 1
            if self._used[name] <= 0:
                del self._used[name]
                self._idle[name] = None

    def squeeze(self, free_blocks: int) -> None:
        """Drop what no longer fits into the free blocks."""
        gone = []
        while len(self._idle) > max(0, free_blocks):
            gone.append(self._idle.popitem(last=False)[0])
        if gone:
            self._moved.append(Moved(WARM_L1, False, packed(gone)))

    def news(self) -> BlockNews | None:
        """Return what happened since the last call."""
        if not self._moved and not self._prompts:
            return None
        told = [
            prompt_blocks(key, tokens=tokens, block_tokens=self._block_tokens, hashes=hashes)
            for key, tokens, hashes in self._prompts
        ]
        news = BlockNews(
            moved=self._moved, prompts=[prompt for prompt in told if prompt is not None]
        )
        self._moved, self._prompts = [], []
        return news
