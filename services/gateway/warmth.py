"""What this gateway knows of the prefixes that engines hold, and how much of a prompt one of them has. No clock, no bus.

News may be lost, doubled or overtaken. Each has a number, and heartbeats have the latest: who is still behind what a heartbeat said when
the next one comes asks for the whole. An engine of which nothing is known is cold: it is chosen by its load, as all were before there
was warmth.

What lies in the store of a host (L3) is there for all its engines and outlives them, so it is kept by store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence
from typing import NamedTuple

from typing_extensions import override

from shared.ids import EngineId
from shared.messages import WARM_L1, WARM_L2, WARM_L3, Chain, Warmth, WarmthWhole
from shared.prefixes import HASH_BYTES, end_of, unpacked

MAX_EARLY = 64
"""News of one engine that wait for those before them; more, and the whole is asked for anyway."""
MAX_PIECES = 1 << 17
"""Of one engine or store; an engine sends far fewer (`warmth.max_pieces`)."""
MAX_STORES = 64
"""Stores that are remembered without an engine that reads from them; one may come back."""
ASK_AGAIN_BEATS = 4
"""Heartbeats to wait for an answer before asking again: 2 s."""
_UNKNOWN = -1


class Found(NamedTuple):
    """How far an engine has a prompt: where its pieces end that are in the first, second and third tier."""

    l1_bytes: int = 0
    l2_bytes: int = 0
    l3_bytes: int = 0
    """In bytes of the canonical text; each byte counts once, for the nearest tier that has it."""
    is_guess: bool = False

    @property
    def total_bytes(self) -> int:
        """Length of the prefix that is held."""
        return self.l1_bytes + self.l2_bytes + self.l3_bytes


NOTHING = Found()


class Holding:
    """What one engine said."""

    __slots__ = ("beat_seq", "early", "is_guess", "pieces", "seq", "store", "wait_beats")

    def __init__(self) -> None:
        self.seq = _UNKNOWN
        """Number of the last news that is in here."""
        self.pieces: dict[int, int] = {}
        self.store = ""
        self.is_guess = False
        self.early: dict[int, Warmth] = {}
        """News that overtook others."""
        self.beat_seq = 0
        """What its last heartbeat said."""
        self.wait_beats = 0

    @override
    def __repr__(self) -> str:
        return f"<Holding seq={self.seq} {len(self.pieces)} pieces>"


class WarmthView:
    """The prefixes of all engines."""

    def __init__(self) -> None:
        self._engines: dict[EngineId, Holding] = {}
        self._stores: OrderedDict[str, OrderedDict[int, None]] = OrderedDict()

    @override
    def __repr__(self) -> str:
        return f"<WarmthView {self._engines}>"

    @property
    def pieces(self) -> int:
        """Pieces known, over all engines."""
        return sum(len(holding.pieces) for holding in self._engines.values())

    def hear(self, news: Warmth) -> None:
        """Take news; what was heard before or comes too early changes nothing yet."""
        holding = self._engines.get(news.engine)
        if holding is None or news.seq <= holding.seq:
            return
        if len(holding.early) < MAX_EARLY:
            holding.early[news.seq] = news
        self._catch_up(holding)

    def take(self, whole: WarmthWhole) -> None:
        """Take all of an engine at once."""
        holding = self._engines.get(whole.engine)
        if holding is None or whole.seq < holding.seq:
            return
        holding.wait_beats = 0
        if whole.seq > holding.seq:
            holding.seq, holding.pieces = whole.seq, {}
            self._put(holding, whole)
        self._catch_up(holding)

    def beat(self, engine: EngineId, seq: int) -> bool:
        """Take the number in a heartbeat; return whether to ask for the whole now."""
        holding = self._engines.setdefault(engine, Holding())
        if not seq:
            holding.seq = max(0, holding.seq)  # it has told nothing yet, so nothing is missing
        is_new = holding.seq == _UNKNOWN and not holding.beat_seq
        is_behind = holding.seq < (seq if is_new else holding.beat_seq)
        holding.beat_seq = seq
        if holding.wait_beats:
            holding.wait_beats -= 1
            return False
        if is_behind:
            holding.wait_beats = ASK_AGAIN_BEATS
        return is_behind

    def forget(self, engine: EngineId) -> None:
        """Forget an engine that is gone; what it put into a store is still there, for others and for the next one on its host."""
        self._engines.pop(engine, None)
        self._drop_stores()

    def _drop_stores(self) -> None:
        """Forget the stores that were used by nobody now alive, the oldest first, beyond a few."""
        used = {holding.store for holding in self._engines.values()}
        idle = [store for store in self._stores if store not in used]
        for store in idle[: max(0, len(idle) - MAX_STORES)]:
            del self._stores[store]

    def found(self, engine: EngineId, chain: Chain, pieces: tuple[int, ...]) -> Found:
        """Return how much of a prompt an engine has; `pieces` are the chain's, unpacked once for all engines."""
        holding = self._engines.get(engine)
        if holding is None or not pieces:
            return NOTHING
        held, store = holding.pieces, self._stores.get(holding.store)
        count = 0
        for piece in pieces:
            if not held.get(piece, 0) & WARM_L1:
                break
            count += 1
        l1_bytes = end_of(chain, count)
        if count < len(pieces) and (store is not None or pieces[count] in held):
            return _deeper(
                chain, pieces[count:], holding, store, Found(l1_bytes, 0, 0, holding.is_guess)
            )
        return Found(l1_bytes, 0, 0, holding.is_guess) if count else NOTHING

    def _catch_up(self, holding: Holding) -> None:
        """Apply what is next, and drop what is over."""
        early = holding.early
        while (news := early.pop(holding.seq + 1, None)) is not None:
            holding.seq += 1
            self._put(holding, news)
        for seq in [seq for seq in early if seq <= holding.seq]:
            del early[seq]

    def _put(self, holding: Holding, said: Warmth | WarmthWhole) -> None:
        holding.is_guess = said.is_guess
        if said.store != holding.store:
            holding.store = said.store
            self._drop_stores()
        store = self._stores.setdefault(said.store, OrderedDict()) if said.store else None
        pieces = holding.pieces
        # A message that is cut short or padded says nothing of what has no pair.
        count = min(len(said.hashes) // HASH_BYTES, len(said.tiers))
        if store is None and not pieces and all(said.tiers):
            # The usual whole, a few milliseconds sooner.
            pieces.update(
                zip(unpacked(said.hashes)[: min(count, MAX_PIECES)], said.tiers, strict=False)
            )
            return
        for piece, tiers in zip(unpacked(said.hashes)[:count], said.tiers, strict=False):
            before = pieces.get(piece, 0)
            if tiers and (before or len(pieces) < MAX_PIECES):
                pieces[piece] = tiers
            elif before:
                del pieces[piece]
            if store is None:
                continue
            if tiers & WARM_L3:
                store[piece] = None
                store.move_to_end(piece)
                if len(store) > MAX_PIECES:
                    store.popitem(last=False)
            elif before & WARM_L3:
                store.pop(piece, None)


def _deeper(
    chain: Chain,
    pieces: Sequence[int],
    holding: Holding,
    store: Container[int] | None,
    found: Found,
) -> Found:
    """Go on with the pieces behind those of the first tier, from any tier."""
    count = len(chain.hashes) // HASH_BYTES - len(pieces)
    end = found.l1_bytes
    tier_bytes = [end, 0, 0]
    for piece in pieces:
        tiers = holding.pieces.get(piece, 0)
        if tiers & WARM_L1:
            tier = 0
        elif tiers & WARM_L2:
            tier = 1
        elif tiers & WARM_L3 or (store is not None and piece in store):
            tier = 2
        else:
            break
        count += 1
        before, end = end, end_of(chain, count)
        tier_bytes[tier] += end - before
    l1_bytes, l2_bytes, l3_bytes = tier_bytes
    return Found(l1_bytes, l2_bytes, l3_bytes, found.is_guess) if end else NOTHING
