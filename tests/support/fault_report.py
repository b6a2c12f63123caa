"""What a fault did to a service under load, as one JSON line for each scenario."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import msgspec

from tests.support.stream_load import Outcome, Tally


class FaultReport(msgspec.Struct, kw_only=True):
    """Figures of one scenario. Times are seconds."""

    scenario: str
    in_flight: int
    """Answers under way when the fault began."""
    asked: int = 0
    """Answers asked for over the whole scenario."""
    failed: int = 0
    """Answers that ended with an error that says so."""
    wrong: int = 0
    """Answers with other text or usage than without the fault, or cut short without an error."""
    continued: int = 0
    """Whole answers that another engine, or the same one anew, went on with."""
    noticed_s: float | None = None
    """From the fault until the gateway said that it is not ready, or that fewer engines are; none: it never had to."""
    recovered_s: float = 0.0
    """From the end of the fault until a new request was answered."""
    whole_s: float = 0.0
    """From the end of the fault until every engine was ready again."""
    longest_pause_s: float = 0.0
    """Longest silence within an answer that became whole."""
    errors: dict[str, int] = {}
    """What failed answers said, and how many of them."""
    connects: int = 0
    """Connections that all peers together made or tried to make because of the fault."""

    def take(self, outcomes: Sequence[Outcome], seen: Tally) -> None:
        """Take what became of the answers."""
        self.asked, self.failed, self.wrong = seen.streams, seen.failed, seen.wrong
        self.continued = seen.continued
        self.errors = dict(Counter(one.error for one in outcomes if one.error is not None))
        self.longest_pause_s = max(
            (one.longest_gap_s for one in outcomes if one.is_whole), default=0.0
        )

    def tell(self) -> None:
        """Write the line to standard output."""
        sys.stdout.write(f"\nfault {msgspec.json.encode(self).decode()}\n")
