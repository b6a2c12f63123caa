"""Outstanding token work, exactly: the signal by which gateways choose and the scaler scales.

A stream owes its prompt until its first token, with it what its choices said elsewhere, and for each choice the tokens still allowed.
The total is kept by differences and equals the sum over the streams at any moment (a property test).
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override


class TotalWork:
    """What all streams of this engine owe together."""

    __slots__ = ("completed_tokens", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.completed_tokens = 0
        """Tokens generated since the start."""

    @override
    def __repr__(self) -> str:
        return f"<TotalWork {self.tokens}>"


class StreamWork:
    """What one stream owes, and what it has generated."""

    __slots__ = (
        "_allowed",
        "_left",
        "_prior",
        "_prompt_left",
        "_total",
        "completion_tokens",
        "is_begun",
    )

    def __init__(
        self, total: TotalWork, *, allowed_tokens: int, said: Sequence[int | None]
    ) -> None:
        """`said`: tokens that each choice has from elsewhere, and that its allowance counts; none: it has ended."""
        self._total = total
        self._allowed = allowed_tokens
        self._left = [0 if told is None else max(0, allowed_tokens - told) for told in said]
        self._prior = sum(told or 0 for told in said)
        self._prompt_left = 0
        self.completion_tokens = 0
        self.is_begun = False
        """Whether any token was generated."""
        total.tokens += sum(self._left)

    @override
    def __repr__(self) -> str:
        return f"<StreamWork prompt={self._prompt_left} left={self._left}>"

    @property
    def tokens(self) -> int:
        """Tokens owed now."""
        return self._prompt_left + sum(self._left)

    def accept(self, *, prompt_tokens: int, context_tokens: int) -> None:
        """Correct the first estimate, now that the prompt's length is known."""
        before = self.tokens
        if not self.is_begun:
            self._prompt_left = prompt_tokens + self._prior
        excess = max(0, self._allowed - max(0, context_tokens - prompt_tokens))
        self._left = [max(0, left - excess) for left in self._left]
        self._total.tokens += self.tokens - before

    def done(self, choice: int, tokens: int) -> None:
        """Pay generated tokens of a choice. More than it owes pays what it owes."""
        self.completion_tokens += tokens
        self._total.completed_tokens += tokens
        left = self._left[choice]
        paid = tokens if tokens <= left else left
        self._left[choice] = left - paid
        if not self.is_begun:
            self.is_begun = True
            paid += self._prompt_left
            self._prompt_left = 0
        self._total.tokens -= paid

    def end_choice(self, choice: int) -> None:
        """Owe nothing more for a choice. A second call changes nothing."""
        self._total.tokens -= self._left[choice]
        self._left[choice] = 0

    def end(self) -> None:
        """Owe nothing more. A second call changes nothing."""
        self._total.tokens -= self.tokens
        self._prompt_left = 0
        self._left = [0] * len(self._left)
