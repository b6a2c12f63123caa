"""What a store counts of its work since its start. Pure."""

from __future__ import annotations

from services.kvstore.fairness import Kind
from shared.kv.protocol import Done

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Times:
    """A histogram of durations."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(SECONDS) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        index = next((i for i, bound in enumerate(SECONDS) if seconds <= bound), len(SECONDS))
        self.buckets[index] += 1
        self.total_s += seconds


class StoreCounts:
    """Values, bytes and jobs."""

    def __init__(self) -> None:
        self.jobs = dict.fromkeys(Kind, 0)
        self.values = dict.fromkeys(Kind, 0)
        """Values loaded or kept."""
        self.missing = dict.fromkeys(Kind, 0)
        """Values asked for and not loaded or kept, whatever the reason."""
        self.bytes = dict.fromkeys(Kind, 0)
        self.full = dict.fromkeys(Kind, 0)
        """Values refused because too much waited."""
        self.known = 0
        """Values to save that were there already."""
        self.evicted = 0
        self.corrupt = 0
        """Values that did not check out."""
        self.rerouted = 0
        """Values whose mirror was dropped while it read them."""
        self.times = {kind: Times() for kind in Kind}
        self.waits = {kind: Times() for kind in Kind}

    def asked(self, kind: Kind, keys: int, wanted: int) -> None:
        """Count a job as it comes."""
        self.jobs[kind] += 1
        if kind is Kind.SAVE:
            self.known += keys - wanted

    def ended(self, kind: Kind, good: int, size: int, done: Done) -> None:
        """Count what became of a job."""
        self.values[kind] += good
        self.missing[kind] += len(done.missing)
        self.bytes[kind] += size
        self.times[kind].add(done.seconds)
        self.waits[kind].add(done.waited)
