"""Which stage explains the slow requests of a window: from ledgers to figures and to sentences.

Pure: ledgers in, values out; randomness is seeded. Memory is bounded whatever the traffic (`LedgerWindow`).
Judges nothing and acts on nothing: it says where time went, and only what the ledgers show.
"""

from shared.blame.groups import BlockerTotal, Group
from shared.blame.report import Blame, Part, Quantile, blame
from shared.blame.skew import Skew, Trait
from shared.blame.window import LedgerWindow
from shared.blame.words import because, sentences

__all__ = [
    "Blame",
    "BlockerTotal",
    "Group",
    "LedgerWindow",
    "Part",
    "Quantile",
    "Skew",
    "Trait",
    "because",
    "blame",
    "sentences",
]
