"""Whose prefill held the decoding streams up, step after step: written once for all streams, read once by each at its end.

Steps of one blocker in a row are one entry, unless a stream began to decode in between (`mark`). Of entries long ago only the worst of
each `CHUNK` are kept, and of a chunk that a reader wants whole it takes these too: reading costs a few steps for each chunk, not for
each entry. A prefill that falls into several chunks and is never among their worst is missed, but then it was not among the worst.
"""

from __future__ import annotations

from typing_extensions import override

from shared.ids import RequestId

CHUNK = 32
WORST = 4
"""Entries of a chunk that are remembered."""
MAX_CHUNKS = 4096
FINE_CHUNKS = 128
"""Chunks of which each entry is kept."""

NOTABLE = 4
"""A prefill is to blame where it makes a step longer by the fourth part at least: less is noise, or nobody's fault in particular."""

Entry = tuple[int, RequestId]
"""Microseconds, and who."""


class Blame:
    """The entries of an engine, numbered from 0."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._first = 0
        """Number of the oldest entry that is kept as it was."""
        self._worst: list[list[Entry]] = []
        self._first_chunk = 0
        self._is_marked = True

    @override
    def __repr__(self) -> str:
        return f"<Blame {self.size} entries>"

    @property
    def size(self) -> int:
        """Entries so far: the number of the next one."""
        return self._first + len(self._entries)

    def charge(self, who: RequestId, us: int) -> None:
        """Note that a prefill of `who` kept the decoding streams waiting."""
        entries = self._entries
        if not self._is_marked and entries[-1][1] == who:
            entries[-1] = (entries[-1][0] + us, who)
            return
        if entries and len(entries) % CHUNK == 0:
            self._close_chunk()
        entries.append((us, who))
        self._is_marked = False

    def mark(self) -> int:
        """Return from where on a stream that begins to decode now is concerned."""
        self._is_marked = True
        return self.size

    def since(self, mark: int, into: dict[RequestId, int]) -> None:
        """Add what came since a mark to `into`."""
        if mark == self.size:
            return
        entries, first = self._entries, self._first
        begin = max(mark, first)
        whole_from = -(-begin // CHUNK)
        # The chunk of the last entry is still open.
        whole_to = max(whole_from, (self.size - 1) // CHUNK)
        fine = entries[begin - first : whole_from * CHUNK - first]
        fine += entries[whole_to * CHUNK - first :]
        oldest = max(0, -(-mark // CHUNK) - self._first_chunk)
        for worst in self._worst[oldest : whole_to - self._first_chunk]:
            fine += worst
        for us, who in fine:
            into[who] = into.get(who, 0) + us

    def _close_chunk(self) -> None:
        """Remember the worst of the chunk that is complete, and let go of what is too old."""
        sums: dict[RequestId, int] = {}
        for us, who in self._entries[-CHUNK:]:
            sums[who] = sums.get(who, 0) + us
        worst = sorted(((us, who) for who, us in sums.items()), reverse=True)
        self._worst.append(worst[:WORST])
        if len(self._worst) > MAX_CHUNKS:
            half = MAX_CHUNKS // 2
            del self._worst[:half]
            self._first_chunk += half
        if len(self._entries) >= 2 * FINE_CHUNKS * CHUNK:
            half = FINE_CHUNKS * CHUNK
            del self._entries[:half]
            self._first += half
