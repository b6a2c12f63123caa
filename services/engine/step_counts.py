"""What an engine counts of its steps. Listens to the step book; plain numbers, read at a scrape."""

from __future__ import annotations

from bisect import bisect_left

from services.engine.steps.step import KvMoves, Step

BOUNDS_S = [1e-4 * 2**power for power in range(18)]
"""Upper bounds of the step durations: 0.1 ms to 13 s, by factors of two as native histograms have them."""


class StepCounts:
    """Counters since the start."""

    def __init__(self) -> None:
        self.steps_by_time = [0] * (len(BOUNDS_S) + 1)
        """By `BOUNDS_S`; the last one is for what is longer."""
        self.busy_s = 0.0
        self.prefill_tokens = 0
        self.cached_tokens = 0
        self.host_tokens = 0
        self.disk_tokens = 0
        self.kv = KvMoves()
        """The moves added up, and how it stood last."""
        self.recomputed_tokens = 0
        self.preemptions = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.mode = ""
        self._ended_at = 0.0

    def step(self, step: Step) -> None:
        """Count a step."""
        took_s = max(0.0, step.ended_at - max(step.scheduled_at, self._ended_at))
        self._ended_at = step.ended_at
        self.busy_s += took_s
        self.steps_by_time[bisect_left(BOUNDS_S, took_s)] += 1
        self.mode = step.mode
        self.preemptions += len(step.preempted)
        for chunk in step.prefills:
            self.prefill_tokens += chunk.tokens
            self.recomputed_tokens += chunk.again
            self.cached_tokens += chunk.cached
            self.host_tokens += chunk.host
            self.disk_tokens += chunk.disk
        if step.kv is not None:
            self._add(step.kv)
        for draft in step.drafts:
            self.drafted_tokens += draft.drafted
            self.accepted_tokens += draft.accepted

    def _add(self, moves: KvMoves) -> None:
        kv = self.kv
        kv.to_host += moves.to_host
        kv.from_host += moves.from_host
        kv.to_disk += moves.to_disk
        kv.from_disk += moves.from_disk
        kv.failed += moves.failed
        kv.dropped += moves.dropped
        kv.given_up += moves.given_up
        kv.aside, kv.disk_blocks = moves.aside, moves.disk_blocks
