"""Where two models think differently of the same tokens, and by how much. Pure.

Both tell the likeliest tokens of a position only, so what can be said is a bound: a deviation and a divergence of at least so much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from shared.models.probe import Option, Position, Scored

MIN_PROBABILITY = 0.01
"""A token that neither model expects as much as this is noise: rounding moves it by several nat."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One position of the text."""

    number: int
    """From 1, counted over what is compared."""
    token: Option
    """What stands there, and what the model thinks of it."""
    left: list[Option]
    right: list[Option]
    """The reference's; none where there is no reference."""
    reference_logprob: float | None = None
    deviation: float = 0.0
    """Largest difference of a log probability, in nat."""
    kl: float = 0.0
    """Kullback-Leibler divergence from the reference to the model, at least."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two models on the same tokens."""

    places: list[Place]
    threshold: float
    largest: Place | None = None
    begins_at: int | None = None
    """Number of the first position whose deviation is beyond the threshold."""
    mean_kl: float = 0.0
    other_tokens: list[int] = []
    """Tokens that are another text for the reference."""


def compare(
    model: Scored, reference: Scored | None, *, chosen: range, threshold: float
) -> Comparison:
    """Compare the tokens at these places of the text; the first token of all has no log probability and is left out."""
    places = [
        _place(number, model, reference, index)
        for number, index in enumerate((index for index in chosen if index > 0), 1)
    ]
    if reference is None or not places:
        return Comparison(places=places, threshold=threshold)
    return Comparison(
        places=places,
        threshold=threshold,
        largest=max(places, key=lambda place: place.deviation),
        begins_at=next((place.number for place in places if place.deviation > threshold), None),
        mean_kl=sum(place.kl for place in places) / len(places),
        other_tokens=_other_tokens(model, reference),
    )


def _place(number: int, model: Scored, reference: Scored | None, index: int) -> Place:
    ours = model.positions[index - 1]
    if reference is None:
        return Place(number=number, token=ours.token, left=ours.top, right=[])
    theirs = reference.positions[index - 1]
    return Place(
        number=number,
        token=ours.token,
        left=ours.top,
        right=theirs.top,
        reference_logprob=theirs.token.logprob,
        deviation=deviation(ours, theirs),
        kl=divergence(theirs, ours),
    )


def deviation(left: Position, right: Position) -> float:
    """Return by how much the log probability of a token that matters differs, at least."""
    ours, theirs = _known(left), _known(right)
    return max(_beyond(ours, theirs), _beyond(theirs, ours))


def _beyond(ours: dict[int, float], theirs: dict[int, float]) -> float:
    """Return the largest difference of the tokens that `ours` expects; what `theirs` does not tell is no likelier than its last one."""
    floor = min(theirs.values())
    least = math.log(MIN_PROBABILITY)
    return max(
        (
            abs(logprob - theirs[token]) if token in theirs else max(0.0, logprob - floor)
            for token, logprob in ours.items()
            if logprob >= least
        ),
        default=0.0,
    )


def divergence(true: Position, told: Position) -> float:
    """Return a lower bound of the divergence: over the tokens that both tell, all others taken as one."""
    p, q = _known(true), _known(told)
    common = p.keys() & q.keys()
    pairs = [(math.exp(p[token]), math.exp(q[token])) for token in common]
    rest = (1 - sum(pair[0] for pair in pairs), 1 - sum(pair[1] for pair in pairs))
    return max(0.0, sum(_term(*pair) for pair in (*pairs, rest)))


def _term(p: float, q: float) -> float:
    return p * math.log(p / max(q, 1e-12)) if p > 1e-12 else 0.0  # noqa: PLR2004 - below it, rounding


def _known(position: Position) -> dict[int, float]:
    return {option.token_id: option.logprob for option in (*position.top, position.token)}


def _other_tokens(model: Scored, reference: Scored) -> list[int]:
    texts = _texts(reference.positions)
    return sorted(
        token
        for token, text in _texts(model.positions).items()
        if token in texts and texts[token] != text
    )


def _texts(positions: Sequence[Position]) -> dict[int, str]:
    return {position.token.token_id: position.token.text for position in positions}
