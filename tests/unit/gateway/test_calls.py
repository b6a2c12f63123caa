"""The pure parts around a call: its lives as tables, what clients are told, and the way of a delta."""

from __future__ import annotations

from itertools import product

import pytest

from services.gateway import refusals
from services.gateway.admission.verdict import ADMITTED, AdmitReason, Ticket, Verdict
from services.gateway.phases import (
    CALL_LIFE,
    PART_LIFE,
    CallEvent,
    CallPhase,
    PartEvent,
    PartPhase,
)
from services.gateway.reception import label
from services.gateway.routing import RouteReason
from services.gateway.streams import LossReason
from shared.errors import (
    BusClosed,
    BusFull,
    NoResponder,
    RemoteBusy,
    RemoteFailed,
    RequestTimeout,
    TooBig,
)
from shared.ids import EngineId, StreamNo
from shared.messages import Refused, RefuseReason
from shared.transitions import IllegalTransition

CALL_CELLS = {
    (CallPhase.WAITING, CallEvent.ADMIT): CallPhase.PLACING,
    (CallPhase.WAITING, CallEvent.END): CallPhase.OVER,
    (CallPhase.PLACING, CallEvent.BEGIN): CallPhase.ANSWERING,
    (CallPhase.PLACING, CallEvent.END): CallPhase.OVER,
    (CallPhase.ANSWERING, CallEvent.END): CallPhase.OVER,
}
PART_CELLS = {
    (PartPhase.PLACING, PartEvent.TAKEN): PartPhase.RUNNING,
    (PartPhase.PLACING, PartEvent.LOST): PartPhase.PLACING,
    (PartPhase.PLACING, PartEvent.CLOSE): PartPhase.DONE,
    (PartPhase.RUNNING, PartEvent.TAKEN): PartPhase.RUNNING,
    (PartPhase.RUNNING, PartEvent.LOST): PartPhase.PLACING,
    (PartPhase.RUNNING, PartEvent.CLOSE): PartPhase.DONE,
}


@pytest.mark.parametrize(("phase", "event"), list(product(CallPhase, CallEvent)))
def test_every_cell_of_a_calls_life(phase, event):
    if (phase, event) in CALL_CELLS:
        assert CALL_CELLS[phase, event] is CALL_LIFE.next(phase, event)
    else:
        with pytest.raises(IllegalTransition):
            CALL_LIFE.next(phase, event)


@pytest.mark.parametrize(("phase", "event"), list(product(PartPhase, PartEvent)))
def test_every_cell_of_a_parts_life(phase, event):
    if (phase, event) in PART_CELLS:
        assert PART_CELLS[phase, event] is PART_LIFE.next(phase, event)
    else:
        with pytest.raises(IllegalTransition):
            PART_LIFE.next(phase, event)


@pytest.mark.parametrize("reason", sorted(set(AdmitReason) - ADMITTED - {AdmitReason.QUEUED}))
def test_every_refusal_of_the_gate_says_when_to_come_back(reason):
    error = refusals.not_admitted(Verdict(ticket=Ticket(1), reason=reason, retry_after_s=7.0))

    limits = {AdmitReason.TENANT_FULL, AdmitReason.QUEUE_FULL, AdmitReason.PROMPTS_FULL}
    is_limit = reason in limits
    assert (429 if is_limit else 503, 7.0) == (error.status, error.retry_after_s)
    assert ("rate_limit_error" if is_limit else "server_error") == error.kind


@pytest.mark.parametrize("reason", RouteReason)
def test_every_reason_without_a_route_has_an_answer(reason):
    assert (404 if reason is RouteReason.NO_SERVICE else 503) == refusals.no_route(
        reason, "m"
    ).status


@pytest.mark.parametrize(
    ("reason", "status", "code", "is_final"),
    [
        (RefuseReason.INVALID, 400, None, True),
        (RefuseReason.TOO_LONG, 400, "context_length_exceeded", True),
        (RefuseReason.UNSUPPORTED, 400, "unsupported_parameter", True),
        (RefuseReason.OVERLOADED, 503, "overloaded", False),
        (RefuseReason.DRAINING, 503, "no_engine", False),
        (RefuseReason.NOT_READY, 503, "no_engine", False),
    ],
)
def test_refusals_of_engines_are_never_charged_to_them(reason, status, code, is_final):
    setback = refusals.refused(
        Refused(
            engine=EngineId("e"), stream=StreamNo(1), reason=reason, message="why", param="prompt"
        )
    )

    assert (status, code, is_final) == (setback.error.status, setback.error.code, setback.is_final)
    assert (0.0, False) == (setback.blame, setback.may_run)
    assert "why" == str(setback.error)
    assert ("prompt" if is_final else None) == setback.error.param


@pytest.mark.parametrize(
    ("error", "status", "is_final", "blame", "may_run"),
    [
        (TooBig(2000, 1000), 413, True, 0.0, False),
        (BusFull("full"), 503, True, 0.0, False),
        (BusClosed("closed"), 503, True, 0.0, False),
        (NoResponder("none"), 503, False, 1.0, False),
        (RequestTimeout("late"), 503, False, 1.0, True),
        (RemoteBusy("busy"), 503, False, 0.0, False),
        (RemoteFailed("raised"), 503, False, 1.0, True),
    ],
)
def test_failures_to_reach_an_engine_are_judged_by_who_is_at_fault(
    error, status, is_final, blame, may_run
):
    setback = refusals.not_reached(error)

    assert (status, is_final) == (setback.error.status, setback.is_final)
    assert (blame, may_run) == (setback.blame, setback.may_run)


@pytest.mark.parametrize("reason", LossReason)
def test_lost_streams_may_be_tried_elsewhere(reason):
    setback = refusals.stream_lost(reason)

    assert (False, True) == (setback.is_final, setback.may_run)
    assert (0.0 if reason is LossReason.NO_BUS else 0.5) == setback.blame


def test_nobody_is_blamed_for_a_silent_bus():
    setback = refusals.bus_silent()

    assert (503, False, 0.0, True) == (
        setback.error.status,
        setback.is_final,
        setback.blame,
        setback.may_run,
    )
    assert setback.is_unheard


@pytest.mark.parametrize("text", ["abc", "a-b_c.d:e/f+g=h@i", "x" * 128])
def test_a_callers_own_id_is_taken_as_a_label(text):
    assert text == label(text)


@pytest.mark.parametrize("text", [None, "", "a b", "a\nb", "é", "x" * 129, "<script>", "\x00"])
def test_what_would_garble_logs_is_no_label(text):
    assert "" == label(text)
