"""What a backend says of its KV blocks: a part of the record of a step. Blocks are named by 64 bits of their hash, whatever that is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shared.prefixes import packed

MAX_NAMED = 1024
"""Blocks that are named of one prompt; of a longer one every second, third, … is."""


class PromptBlocks(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The prompt of a choice is computed, and these are its full blocks, all of them in the pool now."""

    ref: str
    """The backend's name of the choice."""
    tokens: int
    """Length of the prompt."""
    every: int
    """Tokens from one named block to the next; the first ends there."""
    hashes: bytes


class Moved(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Blocks came to a tier or went from it."""

    tier: int
    """`WARM_L1`, `WARM_L2` or `WARM_L3`."""
    is_there: bool
    hashes: bytes


class BlockNews(msgspec.Struct, array_like=True):
    """All of one step. The moves came first, in this order: a prompt's blocks cannot go while it runs."""

    moved: list[Moved] = []
    prompts: list[PromptBlocks] = []
    is_cleared: bool = False
    """Everything in the pool was dropped before all this."""


def prompt_blocks(
    ref: str, *, tokens: int, block_tokens: int, hashes: Sequence[int]
) -> PromptBlocks | None:
    """Return what is told of a prompt with these full blocks; none where it has none."""
    if not hashes:
        return None
    stride = -(-len(hashes) // MAX_NAMED)
    return PromptBlocks(ref, tokens, stride * block_tokens, packed(hashes[stride - 1 :: stride]))
