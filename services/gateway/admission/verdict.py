"""The words of admission: what is offered, what is decided, and why."""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

import msgspec

from shared.ids import TenantId
from shared.messages import Priority

Ticket = NewType("Ticket", int)
"""One request at the gate; unique within the gateway process."""


class AdmitReason(StrEnum):
    """Why a request was let in, made to wait, or refused."""

    FREE = "free"
    """Room and nobody waiting: in."""
    TURN = "turn"
    """Its turn by class and fair share: in."""
    OVERDUE = "overdue"
    """Its class was passed over as often as is allowed: in."""
    QUEUED = "queued"
    """Waits; a later verdict follows."""
    TENANT_FULL = "tenant_full"
    """The tenant has as many requests waiting as it may: refused, try later."""
    QUEUE_FULL = "queue_full"
    """The class has as many requests waiting as it may: refused, try later."""
    PROMPTS_FULL = "prompts_full"
    """The prompts under way take as much memory as they may: refused, try later."""
    TOO_LATE = "too_late"
    """By the measured pace its turn comes too late for an answer within its deadline: refused now, not then."""
    EXPIRED = "expired"
    """While it waited it became too late for an answer within its deadline: refused."""
    NO_ENGINE = "no_engine"
    """No engine of the service is ready: refused, try later."""


ADMITTED = frozenset({AdmitReason.FREE, AdmitReason.TURN, AdmitReason.OVERDUE})


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A request that asks to be let in."""

    ticket: Ticket
    tenant: TenantId
    priority: Priority
    choices: int
    """Slots at engines it takes: prompts × n."""
    prompt_bytes: int = 0
    """Memory that its prompts take until it ends."""
    work_tokens: int
    """Its price in the fair share."""
    deadline: float
    """On the clock of `now`."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided about a ticket."""

    ticket: Ticket
    reason: AdmitReason
    retry_after_s: float | None = None
    """For refusals: when another try makes sense."""
    waited_s: float = 0.0

    @property
    def is_admitted(self) -> bool:
        """Whether the request may go to an engine now."""
        return self.reason in ADMITTED

    @property
    def is_refused(self) -> bool:
        """Whether this is the end of the request."""
        return self.reason not in ADMITTED and self.reason is not AdmitReason.QUEUED


class AdmissionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the waiting room."""

    queue_per_class: int = 4096
    """Requests that may wait in one class; about 2 KB each beside their bodies."""
    queue_per_tenant: int = 1024
    """Requests of one tenant that may wait in one class."""
    prompt_bytes: int = 512 << 20
    """Memory that the prompts of a service may take, waiting and running; one alone always may."""
    prompt_bytes_per_tenant: int = 256 << 20
    """The same for those of one tenant."""
    over_commit: float = 1.1
    """Choices sent per slot of the engines: a short queue there, so that no slot idles until a finished stream is known here."""
    default_passed_over: int = 4
    """Times in a row that waiting `default` requests yield to higher classes."""
    batch_passed_over: int = 9
    """The same for `batch`: at least one turn in about ten is theirs."""
    no_engine_grace_s: float = 10.0
    """How long those already waiting outlive the loss of the last ready engine (a restart), before they are refused."""
    no_engine_retry_s: float = 5.0
    """`Retry-After` where no engine is ready."""
    offline_requests: int = 1000
    """More requests than this of one tenant within `offline_window_s`, each with a deadline beyond `offline_allowance_s`, are
    offline work: batch class. Counted per gateway process.
    """
    offline_window_s: float = 300.0
    offline_allowance_s: float = 300.0
