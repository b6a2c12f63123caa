"""From blocks to pieces: a piece of a prompt's text is where the block is that its last token lies in. Pure, bounded.

Where in the text a token lies is not known here: it is taken to be where it would be if all tokens had the same length. So a piece may be
some blocks off; that much a forecast of cached tokens may be wrong. What it can not do is to name a prefix that never was in the pool:
the block that a piece is tied to belongs to a prompt that begins with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from typing_extensions import override

from services.engine.warmth.blocks import BlockNews, Moved, PromptBlocks
from services.engine.warmth.pieces import PieceBook
from shared.messages import WARM_L1, Chain
from shared.prefixes import ends_of, unpacked

MAX_LOWER_BLOCKS = 1 << 17
"""Blocks of lower tiers that are remembered, for prompts that turn up later."""


class BlockMap:
    """Pieces by block."""

    def __init__(self, book: PieceBook, *, max_lower: int = MAX_LOWER_BLOCKS) -> None:
        self._book = book
        self._max_lower = max_lower
        self._block_of: dict[int, int] = {}
        self._pieces_at: dict[int, list[int]] = {}
        self._lower: OrderedDict[int, int] = OrderedDict()
        """Lower tiers by block."""

    @override
    def __repr__(self) -> str:
        return f"<BlockMap {len(self._pieces_at)} blocks, {len(self._lower)} in lower tiers>"

    def prompt(self, chain: Chain, blocks: PromptBlocks) -> None:
        """Take a prompt whose blocks are all in the pool."""
        named = unpacked(blocks.hashes)
        pieces = unpacked(chain.hashes)
        if not (named and pieces and chain.text_bytes > 0 and blocks.every > 0):
            return
        tokens_per_byte = blocks.tokens / chain.text_bytes
        # The last piece first: then it is also the first to be forgotten.
        for piece, end in zip(reversed(pieces), reversed(ends_of(chain, len(pieces))), strict=True):
            index = min(int(end * tokens_per_byte / blocks.every), len(named)) - 1
            index = max(index, 0)
            block = named[index]
            self._tie(piece, block)
            self._book.put(piece, WARM_L1 | self._lower.get(block, 0))
        self._untie(self._book.trim())

    def apply(self, news: BlockNews) -> None:
        """Take what a step says of blocks, its prompts left out."""
        if news.is_cleared:
            self.clear(WARM_L1)
        for moved in news.moved:
            self._move(moved)

    def clear(self, tier: int) -> None:
        """Note that a tier lost all blocks."""
        for block in list(self._lower):
            self._set_lower(block, self._lower[block] & ~tier)
        for block in list(self._pieces_at):
            self._change(block, add=0, drop=tier)

    def _move(self, moved: Moved) -> None:
        add, drop = (moved.tier, 0) if moved.is_there else (0, moved.tier)
        for block in unpacked(moved.hashes):
            if moved.tier != WARM_L1:
                self._set_lower(block, (self._lower.get(block, 0) | add) & ~drop)
            self._change(block, add=add, drop=drop)

    def _change(self, block: int, *, add: int, drop: int) -> None:
        pieces = self._pieces_at.get(block)
        if pieces is None:
            return
        book = self._book
        gone = []
        for piece in reversed(pieces):
            tiers = (book.tiers(piece) | add) & ~drop
            if tiers != book.tiers(piece):
                book.put(piece, tiers)
            if not tiers:
                gone.append(piece)
        self._untie(gone)

    def _set_lower(self, block: int, tiers: int) -> None:
        if not tiers:
            self._lower.pop(block, None)
            return
        self._lower[block] = tiers
        self._lower.move_to_end(block)
        while len(self._lower) > self._max_lower:
            self._lower.popitem(last=False)

    def _tie(self, piece: int, block: int) -> None:
        before = self._block_of.get(piece)
        if before == block:
            return
        if before is not None:
            self._untie((piece,))
        self._block_of[piece] = block
        self._pieces_at.setdefault(block, []).append(piece)

    def _untie(self, pieces: Iterable[int]) -> None:
        for piece in pieces:
            block = self._block_of.pop(piece, None)
            if block is None:
                continue
            at = self._pieces_at[block]
            at.remove(piece)
            if not at:
                del self._pieces_at[block]
