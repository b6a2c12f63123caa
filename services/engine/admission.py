"""Whether a submit can be taken now, before the backend is asked. Pure.

What depends on the model (context, features) is the backend's to refuse.
"""

from __future__ import annotations

from math import isfinite

import msgspec

from services.engine.pace import retry_after_s
from services.engine.ports import RefusedError
from shared.errors import UserError
from shared.health import Health, HealthState
from shared.messages import RefuseReason, Sampling, Submit
from shared.subjects import token

MAX_LOGPROBS = 1000
"""Alternatives at a position that an engine may be asked for; the gateway's own bound is far below."""
FIGURES = (
    *("temperature", "top_p", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How full the engine is."""

    max_streams: int
    resumes: bool
    max_waiting: int
    waiting: int
    """Choices accepted or asked about, and not begun."""
    free: int = 0
    """Choices that could be begun at once: a burst that finds them free does not wait for long."""
    outstanding_tokens: int
    tokens_per_s: float


def why_not(submit: Submit, health: Health, room: Room) -> RefusedError | None:
    """Return why the submit is refused, or none."""
    return _not_serving(health) or _malformed(submit, room) or _no_room(submit, room)


def _not_serving(health: Health) -> RefusedError | None:
    match health.state:
        case HealthState.READY:
            return None
        case HealthState.STARTING:
            return RefusedError(RefuseReason.NOT_READY, "the engine is loading its model")
        case HealthState.DRAINING:
            return RefusedError(RefuseReason.DRAINING, "the engine is stopping")
        case HealthState.FAILED:
            return RefusedError(RefuseReason.NOT_READY, f"the engine failed: {health.reason}")


def _malformed(submit: Submit, room: Room) -> RefusedError | None:
    """Refuse what no gateway of ours sends, since the bus is open to other programs."""
    sampling = submit.sampling
    if not 1 <= sampling.n <= room.max_streams:
        message = f"n is {sampling.n}, this engine runs 1 to {room.max_streams} choices"
        return RefusedError(RefuseReason.INVALID, message, param="n")
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        message = f"max_tokens is {sampling.max_tokens}, the least is 1"
        return RefusedError(RefuseReason.INVALID, message, param="max_tokens")
    if (odd := _odd_figure(sampling)) is not None:
        return RefusedError(RefuseReason.INVALID, f"{odd} is out of all bounds", param=odd)
    try:
        token(submit.gateway)
    except UserError as error:
        return RefusedError(RefuseReason.INVALID, f"no id of a gateway: {error}")
    return _bad_prior(submit, room) if submit.prior else None


def _odd_figure(sampling: Sampling) -> str | None:
    """Return the name of a figure that no backend can mean anything by: its fault would be found in a step, which is everybody's."""
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MAX_LOGPROBS:
        return "logprobs"
    if sampling.min_tokens < 0:
        return "min_tokens"
    for name in FIGURES:
        value = getattr(sampling, name)
        if value is not None and not isfinite(value):
            return name
    biases = (sampling.logit_bias or {}).values()
    return None if all(map(isfinite, biases)) else "logit_bias"


def _bad_prior(submit: Submit, room: Room) -> RefusedError | None:
    """Refuse to go on where nothing is left to say, or where nobody could know with what."""
    if not room.resumes:
        return RefusedError(RefuseReason.UNSUPPORTED, "this engine cannot go on with an answer")
    sampling = submit.sampling
    known: set[int] = set()
    for prior in submit.prior:
        if not 0 <= prior.choice < sampling.n or prior.choice in known:
            message = f"prior has choice {prior.choice} twice, or beyond n = {sampling.n}"
            return RefusedError(RefuseReason.INVALID, message)
        known.add(prior.choice)
        if sampling.max_tokens is not None and len(prior.token_ids) >= sampling.max_tokens:
            message = f"prior has {len(prior.token_ids)} tokens of {sampling.max_tokens}"
            return RefusedError(RefuseReason.INVALID, message)
        if prior.chars < 0 or min(prior.token_ids, default=0) < 0:
            return RefusedError(RefuseReason.INVALID, "prior has negative numbers")
    return None


def _no_room(submit: Submit, room: Room) -> RefusedError | None:
    # Written so that a NaN is refused too.
    if not submit.deadline_s > 0:
        message = "the deadline had passed before the engine was asked"
    elif room.waiting + submit.sampling.n > room.max_waiting + room.free:
        message = f"{room.waiting} choices wait here, the limit is {room.max_waiting}"
    else:
        return None
    return RefusedError(
        RefuseReason.OVERLOADED,
        message,
        retry_after_s=retry_after_s(room.outstanding_tokens, room.tokens_per_s),
    )
