"""`headrace trace`: finds a request in what the bus keeps, whatever is worth knowing beside it, and asks its engine about a token."""

from __future__ import annotations

import msgspec

from services.console.insight.desk import KEPT_S, Desk
from services.console.insight.found import Found, Search, Told, told
from services.console.insight.story import story
from services.console.insight.tokens import Made, is_sound, made, sentence
from services.console.insight.usual import Usual, usual_of
from services.console.insight.waterfall import Names, counts, heading, waterfall
from shared.blame import LedgerWindow
from shared.errors import (
    HeadraceError,
    NoResponder,
    RemoteBusy,
    RemoteFailed,
    RequestTimeout,
    UserError,
)
from shared.ids import RequestId
from shared.messages import Ledger, StepDetail, StepQuery
from shared.quantities import enumerated, several

COMPARED = 20_000
"""So many of the service's latest requests tell what is usual."""
ANSWER_S = 3.0
NAMED = 5
"""So many of the requests that an id may mean are listed."""


class Unknown(HeadraceError):
    """What was asked for is not, or no longer, known."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request."""

    found: Found
    usual: Usual | None
    blockers: dict[RequestId, Ledger]
    names: Names
    made: list[Made] = []
    """How the wanted token came to be, by choice."""


class TraceDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trace for other programs."""

    request: Told
    blame: list[str]
    blockers: list[Told] = []
    token: list[Made] = []


async def trace(desk: Desk, wanted: str, *, token: int | None) -> Trace:
    """Return what is known of a request. Raises `UserError` where the id means several or none can be meant, `Unknown`."""
    if not wanted.strip():
        raise UserError("an empty id means no request")
    found = await _find(desk, wanted)
    around = await _surroundings(desk, found)
    return Trace(
        found=found,
        usual=usual_of(around.window),
        blockers=around.blockers,
        names=await desk.names(),
        made=await _token(desk, found, token) if token is not None else [],
    )


async def _find(desk: Desk, wanted: str) -> Found:
    search = Search(wanted)
    async for batch in desk.batches(newest_first=True):
        if search.look(batch):
            break
    match search.candidates:
        case [one]:
            return one
        case []:
            raise Unknown(
                f"no request {wanted!r} ended in the last {KEPT_S / 60:.0f} minutes, or its ledger is gone from the bus; "
                "one that still runs has none yet"
            )
        case several_of_them:
            raise UserError(
                f"{wanted!r} may mean {_listed(several_of_them)}", hint="give one whole id"
            )


def _listed(found: list[Found]) -> str:
    named = [
        f"{one.ledger.request} ({one.service}, {one.began:%H:%M:%S} UTC)" for one in found[:NAMED]
    ]
    more = len(found) - NAMED
    return enumerated([*named, *([f"{more} others or more"] if more > 0 else [])])


class Surroundings:
    """Other requests of the service, read from the newest on: who held this one up, and what is usual."""

    def __init__(self, found: Found, *, compared: int = COMPARED) -> None:
        self._began_unix_us = found.ledger.began_unix_us
        self._missing = {blocker.request for blocker in found.ledger.blocked_by}
        self._compared = compared
        self.window = LedgerWindow()
        self.blockers: dict[RequestId, Ledger] = {}

    def look(self, other: Found) -> bool:
        """Take one; return whether no more is to be learned: what ended before this one began held nobody up."""
        ledger = other.ledger
        if ledger.request in self._missing:
            self._missing.discard(ledger.request)
            self.blockers[ledger.request] = ledger
        if self.window.seen < self._compared:
            self.window.add(ledger)
            return False
        return not self._missing or other.ended_unix_us < self._began_unix_us


async def _surroundings(desk: Desk, found: Found) -> Surroundings:
    around = Surroundings(found)
    async for other in desk.requests(service=found.service, newest_first=True):
        if around.look(other):
            break
    return around


async def _token(desk: Desk, found: Found, token: int) -> list[Made]:
    one = found.ledger
    longest = max((choice.tokens for choice in one.choices), default=one.completion_tokens)
    if token > longest:
        raise Unknown(f"the answer has {several(longest, 'token')}, so none has the number {token}")
    query = StepQuery(engine=one.engine, request=one.request)
    try:
        detail = await desk.bus.request(query, timeout_s=ANSWER_S)
    except NoResponder as error:
        raise Unknown(
            f"engine {one.engine} is gone, and what it knew of its steps with it"
        ) from error
    except (RequestTimeout, RemoteBusy, RemoteFailed) as error:
        raise Unknown(f"engine {one.engine} does not tell its steps: {error}") from error
    if not isinstance(detail, StepDetail) or not detail.is_known:
        raise Unknown(f"engine {one.engine} no longer remembers the steps of {one.request}")
    if not is_sound(detail):
        raise Unknown(f"engine {one.engine} tells its steps in a way that cannot be read")
    found_tokens = made(detail, token)
    if not found_tokens:
        raise Unknown(
            f"engine {one.engine} did not make token {token} of {one.request}"
            + (": the answer was begun at another engine" if one.attempts else "")
        )
    return found_tokens


def text(one: Trace) -> str:
    """Return the trace for people."""
    found = one.found
    tokens = [sentence(m, has_choices=len(found.ledger.choices) > 1) for m in one.made]
    parts = [
        heading(found, one.names),
        waterfall(found.ledger),
        counts(found, one.names),
        story(found, one.usual, one.blockers, one.names),
        tokens,
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def document(one: Trace) -> TraceDocument:
    """Return the trace for other programs."""
    return TraceDocument(
        request=told(one.found),
        blame=story(one.found, one.usual, one.blockers, one.names),
        blockers=[
            told(Found(one.found.service, one.found.gateway, ledger))
            for ledger in one.blockers.values()
        ],
        token=one.made,
    )
