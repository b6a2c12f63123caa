"""Keeps the free blocks that hold nothing in the order of their numbers, so that requests get runs of adjacent blocks.

vLLM hands out the blocks without content first, the one freed last before the others: after a while in any order. What scattered blocks
cost is their transfer, to lower tiers and between engines. Blocks that hold a cached prefix stay in vLLM's order: the oldest goes first.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

MOST = 256
"""Blocks that are put in order at once: 80 µs on a busy machine (`bench/block_reserve.py`), and only after some were freed."""


class FreeOrder:
    """For one block pool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._free = 0
        """Free blocks at the last look."""

    @override
    def __repr__(self) -> str:
        return f"<FreeOrder of {self._free} free blocks>"

    def tidy(self) -> None:
        """Put the first of the free blocks in order, where some were freed since the last call."""
        queue = self._pool.free_block_queue
        before, self._free = self._free, queue.num_free_blocks
        if self._free <= before:
            return
        count = last = 0
        is_ordered = True
        block = queue.fake_free_list_head.next_free_block
        while count < MOST and block.next_free_block is not None and block.block_hash is None:
            is_ordered = is_ordered and last < block.block_id
            last = block.block_id
            count += 1
            block = block.next_free_block
        if not is_ordered:
            first = queue.popleft_n(count)
            queue.prepend_n(sorted(first, key=_number))


def _number(block: Any) -> int:
    number: int = block.block_id
    return number
