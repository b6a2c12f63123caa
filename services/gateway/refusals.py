"""What a client is told when it gets no answer: from verdicts of the gate, of the router, and of engines to OpenAI's errors. Pure."""

from __future__ import annotations

import msgspec

from services.gateway.admission.verdict import AdmitReason, Verdict
from services.gateway.call import ApiError
from services.gateway.openai.models import model_not_found
from services.gateway.routing import RouteReason
from services.gateway.streams import LossReason
from shared.errors import (
    BusClosed,
    BusError,
    BusFull,
    NoResponder,
    RemoteBusy,
    RequestTimeout,
    TooBig,
)
from shared.messages import Refused, RefuseReason

RETRY_S = 5.0


class Setback(msgspec.Struct, frozen=True, kw_only=True):
    """An engine did not take a prompt, or lost it."""

    error: ApiError
    """What the client is told if nobody else can serve it."""
    is_final: bool = False
    """No other engine would do better."""
    blame: float = 0.0
    """Failures charged to the engine; input errors and mere load never are."""
    may_run: bool = False
    """The engine may have taken it all the same, so it is told to cancel."""
    is_unheard: bool = False
    """The engine was not there, or the bus was not: asking again costs nothing, and in a moment it may be."""
    why: str = "failed"
    """What the engine did, as a verb phrase; never text from outside."""
    bars_way: bool = False
    """The way of going on (see `continuation.Way`) leads nowhere."""


def unavailable(message: str, *, code: str, retry_after_s: float | None = RETRY_S) -> ApiError:
    """Return a 503."""
    return ApiError(503, message, kind="server_error", code=code, retry_after_s=retry_after_s)


def no_engine_yet() -> ApiError:
    """Return what a client is told before the first engine has been heard of."""
    return unavailable("No engine has reported to this gateway yet.", code="no_engine")


def expired() -> ApiError:
    """Return what a client is told whose deadline passed."""
    return ApiError(
        504,
        "The answer was not complete within the request's timeout.",
        kind="timeout_error",
        code="request_timeout",
    )


def stopping() -> ApiError:
    """Return what a client is told while the gateway drains."""
    return unavailable("This gateway is stopping; try again.", code="stopping", retry_after_s=1.0)


def internal() -> ApiError:
    """Return what a client is told after a fault of ours; the log has the rest."""
    return ApiError(500, "Internal error of the gateway.", kind="server_error", code="internal")


def not_admitted(verdict: Verdict) -> ApiError:
    """Return what a refused client is told."""
    retry = verdict.retry_after_s
    match verdict.reason:
        case AdmitReason.TENANT_FULL:
            message = "You have too many requests waiting; try again later."
        case AdmitReason.QUEUE_FULL:
            message = "Too many requests of this class are waiting; try again later."
        case AdmitReason.PROMPTS_FULL:
            message = "The prompts under way take all the memory that they may; try again later."
        case AdmitReason.NO_ENGINE:
            return unavailable(
                "No engine of this model is ready.", code="no_engine", retry_after_s=retry
            )
        case AdmitReason.TOO_LATE:
            return unavailable(
                "At the present load your request's turn would come too late for an answer within its timeout.",
                code="overloaded",
                retry_after_s=retry,
            )
        case AdmitReason.EXPIRED:
            return unavailable(
                "The request's turn did not come in time for an answer within its timeout.",
                code="overloaded",
                retry_after_s=retry,
            )
        case _:
            raise ValueError(f"{verdict.reason} is no refusal")
    return ApiError(
        429, message, kind="rate_limit_error", code="rate_limit_exceeded", retry_after_s=retry
    )


def no_route(reason: RouteReason, model: str) -> ApiError:
    """Return what a client is told where no engine passes the filters."""
    match reason:
        case RouteReason.NO_SERVICE:
            return model_not_found(model)
        case RouteReason.HUNG:
            return unavailable("All engines of this model hang.", code="engines_hung")
        case RouteReason.TRIED:
            return unavailable("No other engine of this model is ready.", code="no_engine")
        case _:
            return unavailable("No engine of this model is ready.", code="no_engine")


def refused(answer: Refused) -> Setback:
    """Judge an engine's refusal."""
    match answer.reason:
        case RefuseReason.INVALID:
            return _at_fault(answer, code=None)
        case RefuseReason.TOO_LONG:
            return _at_fault(answer, code="context_length_exceeded")
        case RefuseReason.UNSUPPORTED:
            return _at_fault(answer, code="unsupported_parameter")
        case RefuseReason.OVERLOADED:
            return Setback(
                error=unavailable(
                    answer.message, code="overloaded", retry_after_s=answer.retry_after_s or RETRY_S
                ),
                why="is overloaded",
            )
        case RefuseReason.DRAINING | RefuseReason.NOT_READY:
            return Setback(
                error=unavailable(answer.message, code="no_engine"), why="takes nothing new"
            )


def _at_fault(answer: Refused, *, code: str | None) -> Setback:
    error = ApiError(
        400, answer.message, kind="invalid_request_error", code=code, param=answer.param
    )
    return Setback(error=error, is_final=True, why="cannot serve it")


def not_reached(error: BusError) -> Setback:
    """Judge a submit that got no reply."""
    match error:
        case TooBig():
            too_big = ApiError(
                413,
                f"The prompt is too large for the message bus ({error.payload_bytes} bytes; at most {error.max_bytes}, its `max_payload`).",
                kind="invalid_request_error",
                code="request_too_large",
            )
            return Setback(error=too_big, is_final=True)
        case BusFull() | BusClosed():
            why = "is not reachable" if isinstance(error, BusClosed) else "takes nothing more now"
            return Setback(
                error=unavailable(f"The message bus {why}; try again.", code="bus_unavailable"),
                is_final=True,
            )
        case NoResponder():
            return Setback(error=_engine_failed("The engine is gone."), blame=1.0, is_unheard=True)
        case RequestTimeout():
            failed = _engine_failed("The engine does not answer.")
            return Setback(error=failed, blame=1.0, may_run=True, why="does not answer")
        case RemoteBusy():
            return Setback(error=unavailable("The engine is overloaded.", code="overloaded"))
        case _:
            failed = _engine_failed("The engine failed to take the request.")
            return Setback(error=failed, blame=1.0, may_run=True)


def bus_silent() -> Setback:
    """Judge a submit that got no reply while the bus did not answer either: that says nothing about the engine."""
    error = unavailable("The message bus does not answer.", code="bus_unavailable")
    return Setback(error=error, may_run=True, is_unheard=True)


def stream_lost(reason: LossReason) -> Setback:
    """Judge a stream that cannot be repaired."""
    failed = _engine_failed(f"A part of the answer was lost on its way ({reason}).")
    blame = 0.0 if reason is LossReason.NO_BUS else 0.5
    return Setback(error=failed, blame=blame, may_run=True, why=f"lost a part ({reason})")


def engine_lost(why: str) -> Setback:
    """Judge the loss of an engine under a running stream; `why` ends the sentence."""
    return Setback(error=_engine_failed(f"The engine {why}."), blame=1.0, may_run=True, why=why)


def diverged(how: str) -> Setback:
    """Judge a second answer that is not the first one."""
    failed = _engine_failed(f"Another engine could not go on with the answer: {how}.")
    return Setback(error=failed, may_run=True, bars_way=True, why="gave another answer")


def broken_off(setback: Setback) -> ApiError:
    """Return what a client is told where nobody goes on; never that the request is at fault, since an engine had taken it."""
    if setback.error.status >= 500:  # noqa: PLR2004
        return setback.error
    return _engine_failed(f"Another engine could not go on with the answer: {setback.error}")


def _engine_failed(message: str) -> ApiError:
    return unavailable(message, code="engine_failed", retry_after_s=1.0)
