"""Pieces of prompts and the tiers that have them, and what of it the gateways do not know yet. Pure, bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from typing_extensions import override

from shared.prefixes import packed


class PieceBook:
    """Tiers by piece; the piece used longest ago goes first."""

    def __init__(self, max_pieces: int) -> None:
        self._max_pieces = max_pieces
        self._tiers: OrderedDict[int, int] = OrderedDict()
        self._told: dict[int, int] = {}
        """Of pieces that changed, what the gateways know."""

    @override
    def __repr__(self) -> str:
        return f"<PieceBook {len(self._tiers)} pieces, {len(self._told)} to tell>"

    def __len__(self) -> int:
        return len(self._tiers)

    @property
    def has_news(self) -> bool:
        """Whether something changed that was not told."""
        return bool(self._told)

    def tiers(self, piece: int) -> int:
        """Return where a piece is; 0: nowhere."""
        return self._tiers.get(piece, 0)

    def put(self, piece: int, tiers: int) -> None:
        """Set where a piece is, and count it as used now; with 0 it is forgotten."""
        before = self._tiers.get(piece, 0)
        if tiers:
            self._tiers[piece] = tiers
            self._tiers.move_to_end(piece)
        elif before:
            del self._tiers[piece]
        if tiers != before:
            self._note(piece, before, tiers)

    def trim(self) -> list[int]:
        """Forget the oldest pieces beyond the bound; return them."""
        gone = []
        while len(self._tiers) > self._max_pieces:
            piece, tiers = self._tiers.popitem(last=False)
            self._note(piece, tiers, 0)
            gone.append(piece)
        return gone

    def news(self, most: int) -> tuple[bytes, bytes]:
        """Return up to `most` pieces that changed, and where each is now; they count as told."""
        pieces = list(self._told)[:most]
        for piece in pieces:
            del self._told[piece]
        return self._as_told(pieces)

    def whole(self) -> tuple[bytes, bytes]:
        """Return all pieces as the gateways know them that have heard everything so far."""
        told = self._tiers | self._told if self._told else self._tiers
        return self._as_told([piece for piece, tiers in told.items() if tiers], told)

    def _as_told(
        self, pieces: Sequence[int], tiers: dict[int, int] | None = None
    ) -> tuple[bytes, bytes]:
        known = self._tiers if tiers is None else tiers
        return packed(pieces), bytes([known.get(piece, 0) for piece in pieces])

    def _note(self, piece: int, before: int, after: int) -> None:
        if self._told.setdefault(piece, before) == after:
            del self._told[piece]
