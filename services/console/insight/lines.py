"""`headrace logs`: one line a request, and which requests are wanted. Pure."""

from __future__ import annotations

import msgspec

from services.console.insight.found import Found
from services.console.insight.waterfall import Names
from shared.messages import STAGES, Ledger
from shared.quantities import duration, percent

STAGE_SHARE = 0.25
"""A stage with so much of a request belongs to its story even where another is longer."""
HEAD = (
    f"{'ENDED (UTC)':<14}{'REQUEST':<35}{'OUTCOME':<10}{'STATUS':>6}{'WALL':>10}{'FIRST':>9}{'TOKENS':>8}"
    f"  {'STAGE':<12}{'TIME':>9}{'SHARE':>7}  {'ENGINE':<20}CODE"
)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests are listed."""

    stage: str = ""
    """Those of which this stage was the largest part, or a quarter."""
    slower_us: int = 0
    """Those that took longer."""

    def takes(self, ledger: Ledger) -> bool:
        """Return whether the request is listed."""
        if ledger.wall_us <= self.slower_us:
            return False
        if not self.stage:
            return True
        mine = ledger.us[STAGES.index(self.stage)]
        return mine >= min(max(ledger.us), STAGE_SHARE * ledger.wall_us)

    @property
    def words(self) -> str:
        """What is listed, as the end of `no request …`; empty: all."""
        said = [f"slower than {duration(self.slower_us)}"] if self.slower_us else []
        said += [f"with much {self.stage}"] if self.stage else []
        return " ".join(said)


def log_line(found: Found, wanted: Wanted, names: Names) -> str:
    """Return the line of a request: the wanted stage, else the longest."""
    one = found.ledger
    stage = wanted.stage or STAGES[max(range(len(STAGES)), key=one.us.__getitem__)]
    us = one.us[STAGES.index(stage)]
    second = found.ended_unix_us // 1_000_000 % 86_400
    ended = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.{found.ended_unix_us // 1000 % 1000:03}"
    share = percent(us / one.wall_us) if one.wall_us else ""
    engine = names.get(one.engine) or one.engine or "-"
    return (
        f"{ended:<14}{one.request:<35}{one.outcome:<10}{one.status:>6}{duration(one.wall_us):>10}"
        f"{duration(one.ttft_us) if one.ttft_us else '-':>9}{one.completion_tokens:>8}"
        f"  {stage:<12}{duration(us):>9}{share:>7}  {engine:<20}{one.code}"
    ).rstrip()
