"""How long answers without a bound of their own become: what 95% of them need, followed as they end. Pure, and remembers none of them."""

from __future__ import annotations

from typing_extensions import override

QUANTILE = 0.95
STEP = 0.1
"""An answer that is longer raises the estimate by `STEP` × 0.95, a shorter one lowers it by `STEP` × 0.05: they balance where 5% are
longer. With this step it takes about 30 longer ones, or 500 shorter ones, to move it by a factor of ten."""
FIRST_PART = 16
"""Part of the context that is assumed before any answer has ended: half of what counts as short, so that a short prompt does as well."""


class AnswerLengths:
    """The estimate, in tokens."""

    def __init__(self, context_tokens: int) -> None:
        self._most = float(context_tokens)
        self._estimate = max(1.0, context_tokens / FIRST_PART)

    @override
    def __repr__(self) -> str:
        return f"<AnswerLengths {self.tokens}>"

    @property
    def tokens(self) -> int:
        """What to expect of an answer."""
        return int(self._estimate)

    def add(self, tokens: int) -> None:
        """Learn from an answer that ended by itself."""
        weight = QUANTILE if tokens > self._estimate else QUANTILE - 1
        self._estimate = min(self._most, max(1.0, self._estimate * (1 + STEP * weight)))
