"""For backends that do not tell what they hold: what was sent to them lately, up to the size of their pool. Pure, bounded."""

from __future__ import annotations

from collections import OrderedDict

from typing_extensions import override

from services.engine.warmth.pieces import PieceBook
from shared.messages import WARM_L1, Chain
from shared.prefixes import ends_of, unpacked


class GuessPool:
    """A pool as it would be if the backend kept what was used last."""

    def __init__(self, book: PieceBook, *, pool_tokens: int) -> None:
        self._book = book
        self._pool_tokens = pool_tokens
        self._tokens_of: OrderedDict[int, float] = OrderedDict()
        self._tokens = 0.0

    @override
    def __repr__(self) -> str:
        return f"<GuessPool {self._tokens:.0f} of {self._pool_tokens} tokens>"

    def prompt(self, chain: Chain, tokens: int) -> None:
        """Take a prompt that the backend accepted."""
        pieces = unpacked(chain.hashes)
        ends = ends_of(chain, len(pieces))
        starts = [0, *ends]
        # The last piece first: then it is also the first to be forgotten.
        for index in range(len(pieces) - 1, -1, -1):
            piece = pieces[index]
            share = (ends[index] - starts[index]) / chain.text_bytes
            self._tokens += share * tokens - self._tokens_of.pop(piece, 0.0)
            self._tokens_of[piece] = share * tokens
            self._book.put(piece, WARM_L1)
        while self._tokens > self._pool_tokens and self._tokens_of:
            self._forget(next(iter(self._tokens_of)))
        for piece in self._book.trim():
            self._forget(piece)

    def _forget(self, piece: int) -> None:
        self._tokens -= self._tokens_of.pop(piece, 0.0)
        self._book.put(piece, 0)
