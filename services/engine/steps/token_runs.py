"""Which step made which token of a choice: runs of steps that made the same number each.

A choice that decodes makes one token a step, which nobody has to say; said are first tokens, pauses, and what speculation added.
"""

from __future__ import annotations

from typing_extensions import override

MAX_RUNS = 4096
"""Beyond it runs are kept some steps apart, and within one the answer is off by a few steps. An answer of 128k tokens without speculation
and preemptions is one run."""


class TokenRuns:
    """The runs of one choice."""

    __slots__ = ("_apart", "_per_step", "_step", "_tokens", "runs")

    def __init__(self, step: int) -> None:
        """`step`: the one that made the first token."""
        self.runs = [(0, step, 1)]
        """First token, step, tokens a step."""
        self._apart = 1
        """Steps from one run to the next at least."""
        self._tokens = 1
        """Made up to and with the step `_step`."""
        self._step = step
        self._per_step = 1
        """Of the last run; 0: paused."""

    @override
    def __repr__(self) -> str:
        return f"<TokenRuns {self._tokens} tokens by step {self._step}, {len(self.runs)} runs>"

    def made(self, step: int, tokens: int) -> None:
        """Note what a step made."""
        self._go_on(step - 1)
        if tokens != self._per_step:
            self._begin(step, tokens)
        self._tokens += tokens
        self._step = step

    def pause(self, step: int) -> None:
        """Note that this step makes no token, and no other does until `made` or `resume` says so."""
        self._go_on(step - 1)
        self._per_step = 0
        self._step = step

    def resume(self, step: int) -> None:
        """Note that from this step on each makes a token."""
        self._step = step - 1
        self._begin(step, 1)

    def stop(self, step: int) -> None:
        """Note that this step made the last token."""
        self._go_on(step)
        self._per_step = 0

    def by(self, step: int) -> list[tuple[int, int, int]]:
        """Return the runs with this step."""
        self._go_on(step)
        return self.runs

    def _go_on(self, step: int) -> None:
        """Count one token for each step that nobody spoke of."""
        if self._per_step and step > self._step:
            if self._per_step != 1:
                self._begin(self._step + 1, 1)
            self._tokens += step - self._step
            self._step = step

    def _begin(self, step: int, per_step: int) -> None:
        self._per_step = per_step
        runs = self.runs
        if runs and runs[-1][0] == self._tokens:
            del runs[-1]
        if not runs or step - runs[-1][1] >= self._apart:
            runs.append((self._tokens, step, per_step))
        if len(runs) > MAX_RUNS:
            self._apart *= 2
            self.runs = kept = runs[:1]
            for run in runs:
                if run[1] - kept[-1][1] >= self._apart:
                    kept.append(run)
