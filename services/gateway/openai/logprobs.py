"""Log probabilities in the shapes of the two APIs."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.openai.responses import (
    ChatLogprobs,
    CompletionLogprobs,
    TokenLogprobObject,
    TopLogprobObject,
)
from shared.messages import TokenLogprob

LOWEST_LOGPROB = -9999.0
"""OpenAI's word for a token that is out of the question; JSON has no infinity."""


def chat_logprobs(entries: Sequence[TokenLogprob], alternatives: int) -> ChatLogprobs:
    """Return the chat API's shape, with at most `alternatives` at each position."""
    return ChatLogprobs(
        content=[
            TokenLogprobObject(
                token=entry.token,
                logprob=_finite(entry.logprob),
                token_bytes=list(entry.token_bytes),
                top_logprobs=[
                    TopLogprobObject(
                        token=top.token,
                        logprob=_finite(top.logprob),
                        token_bytes=list(top.token_bytes),
                    )
                    for top in entry.top[:alternatives]
                ],
            )
            for entry in entries
        ]
    )


def completion_logprobs(
    entries: Sequence[TokenLogprob], alternatives: int, *, offset: int
) -> CompletionLogprobs:
    """Return the completion API's shape; `offset` is where the first token begins in the choice's text.

    As in OpenAI's, a position has the sampled token and `alternatives` others or the same one among them.
    """
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    return CompletionLogprobs(
        text_offset=offsets,
        token_logprobs=[_finite(entry.logprob) for entry in entries],
        tokens=[entry.token for entry in entries],
        top_logprobs=[
            {entry.token: _finite(entry.logprob)}
            | {top.token: _finite(top.logprob) for top in entry.top[:alternatives]}
            for entry in entries
        ],
    )


def text_length(entries: Sequence[TokenLogprob]) -> int:
    """Return by how much `entries` move the text offset."""
    return sum(len(entry.token) for entry in entries)


def _finite(logprob: float) -> float:
    # False for NaN as well.
    return logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB
