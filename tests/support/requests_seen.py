"""Ledgers of made-up requests, for tests of what reads them."""

from __future__ import annotations

from typing import Any

from shared.ids import EngineId, GatewayId, RequestId, ServiceName
from shared.messages import STAGES, Blocker, Ledger, LedgerBatch, Outcome, Priority, Stage

BEGAN_UNIX_US = 1_767_225_600_000_000
"""2026-01-01 00:00:00 UTC."""
SERVICE = ServiceName("tiny")
GATEWAY = GatewayId("g0000000000000001")
ENGINE = EngineId("e0000000000000001")


def stages(**ms: float) -> list[int]:
    """Return microseconds by stage from milliseconds by name."""
    return [round(1000 * ms.pop(stage, 0.0)) for stage in STAGES] if ms else [0] * len(STAGES)


def ledger(number: int = 1, *, parts: dict[str, float] | None = None, **fields: Any) -> Ledger:
    """Return a finished chat of one choice; `parts` are milliseconds by stage, `fields` those of the ledger."""
    us = stages(**({"prefill": 20.0, "decode": 80.0} if parts is None else parts))
    early = sum(us[: STAGES.index(Stage.PREFILL) + 1])
    known: dict[str, Any] = {
        "request": RequestId(f"chatcmpl-{number:024x}"),
        "began_unix_us": BEGAN_UNIX_US + 1000 * number,
        "wall_us": sum(us),
        "us": us,
        "outcome": Outcome.FINISHED,
        "priority": Priority.DEFAULT,
        "door": "http",
        "kind": "chat",
        "status": 200,
        "ttft_us": early,
        "engine": ENGINE,
        "prompt_tokens": 100,
        "prefill_tokens": 100,
        "completion_tokens": 8,
        "batch_size": 4.0,
    }
    return Ledger(**(known | fields))


def blocked(by: int, ms: float) -> Blocker:
    """Return that the prefill of request `by` held somebody up."""
    return Blocker(request=RequestId(f"chatcmpl-{by:024x}"), us=round(1000 * ms))


def batch(*ledgers: Ledger, service: ServiceName = SERVICE) -> LedgerBatch:
    """Return a message of one gateway."""
    return LedgerBatch(service=service, gateway=GATEWAY, ledgers=list(ledgers))
