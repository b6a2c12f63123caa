"""Declares the service of `headrace up`, and says what else the platform was told to run."""

from __future__ import annotations

import asyncio

import msgspec

from shared.declared import Declared
from shared.errors import NoHistory, RequestTimeout
from shared.ids import ServiceName
from shared.spec.model import LLMService

UP = "headrace up"
"""`ServiceRecord.by` of what is declared here: the next `up` replaces it, whatever its name."""
POLL_S = 0.05


class Told(msgspec.Struct, frozen=True):
    """What the platform is to run."""

    is_ours: bool
    """False: a service of this name was applied, and stays as it is."""
    others: tuple[ServiceName, ...]
    """Services that were applied earlier, and come up again."""


async def declare(declared: Declared, spec: LLMService, *, engines: int) -> Told:
    """Declare the service as soon as the operator keeps records; the caller sets the deadline. Raises `UserError`."""
    while True:
        try:
            return await _declare(declared, spec, engines)
        except (NoHistory, RequestTimeout):
            await asyncio.sleep(POLL_S)


async def _declare(declared: Declared, spec: LLMService, engines: int) -> Told:
    there = [each.record for each in await declared.list() if not each.record.deleted]
    ours: list[ServiceName] = []
    applied: list[ServiceName] = []
    for record in there:
        (ours if record.by == UP else applied).append(record.service)
    for name in ours:
        if name != spec.name:
            await declared.delete(name, by=UP)
    if spec.name in applied:
        return Told(False, tuple(name for name in applied if name != spec.name))
    await declared.apply(spec, by=UP)
    await declared.scale(spec.name, engines, by="console", reason=UP)
    return Told(True, tuple(applied))
