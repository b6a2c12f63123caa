"""More requests than there is room for, at a steady rate whatever becomes of them, and what each class of them got."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from tests.support.hostile_clients import Answered, ask, chat_body

REFUSALS = (429, 503)
EXPIRED = 504


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one tenant and class."""

    name: str
    per_s: float
    priority: str = "default"
    key: str = ""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests of one kind got."""

    kind: str
    sent: int
    served: int
    refused: int
    expired: int
    """Admitted, and not whole within the deadline."""
    broken: int
    """Anything else."""
    served_p50_s: float
    served_max_s: float
    refused_p50_s: float
    refused_p99_s: float
    refused_max_s: float


async def overload(
    port: int, model: str, kinds: Sequence[Kind], *, seconds: float, tokens: int, timeout_s: float
) -> list[Answered]:
    """Send each kind at its rate; return all answers when the last has come."""
    body = chat_body(model, max_tokens=tokens)
    answers: list[Answered] = []

    async def one(kind: Kind) -> None:
        fields = [f"X-Priority: {kind.priority}", f"X-Request-Timeout: {timeout_s:g}"]
        fields += [f"Authorization: Bearer {kind.key}"] if kind.key else []
        try:
            answers.append(await ask(port, body, *fields, kind=kind.name))
        except (OSError, EOFError, TimeoutError) as error:
            answers.append(Answered(0, 0.0, repr(error).encode(), kind.name))

    async with asyncio.TaskGroup() as group:

        async def send(kind: Kind) -> None:
            loop = asyncio.get_running_loop()
            begun = loop.time()
            for number in range(round(seconds * kind.per_s)):
                await asyncio.sleep(begun + number / kind.per_s - loop.time())
                group.create_task(one(kind))

        for kind in kinds:
            group.create_task(send(kind))
    return answers


def summaries(answers: Sequence[Answered]) -> dict[str, Summary]:
    """Return what each kind got."""
    return {
        kind: _summary(kind, [answer for answer in answers if answer.kind == kind])
        for kind in sorted({answer.kind for answer in answers})
    }


def _summary(kind: str, answers: list[Answered]) -> Summary:
    served = sorted(answer.took_s for answer in answers if answer.status == 200)
    refused = sorted(answer.took_s for answer in answers if answer.status in REFUSALS)
    expired = sum(answer.status == EXPIRED for answer in answers)
    return Summary(
        kind=kind,
        sent=len(answers),
        served=len(served),
        refused=len(refused),
        expired=expired,
        broken=len(answers) - len(served) - len(refused) - expired,
        served_p50_s=_within(0.5, served),
        served_max_s=max(served, default=0.0),
        refused_p50_s=_within(0.5, refused),
        refused_p99_s=_within(0.99, refused),
        refused_max_s=max(refused, default=0.0),
    )


def _within(ratio: float, sorted_s: list[float]) -> float:
    """Return the time within which this share of the answers came."""
    return sorted_s[int(ratio * (len(sorted_s) - 1))] if sorted_s else 0.0
