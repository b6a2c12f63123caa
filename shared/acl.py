"""Who may publish and subscribe what: NATS permissions derived from `ROUTES`, so that they cannot drift from the contract.

Pure. `nats_config` renders the server's configuration from them. Replies travel by the server's `allow_responses`,
so no service may write to inboxes that it was not asked from.
"""

from __future__ import annotations

import re

import msgspec

from shared.messages import (
    API_CANCEL_SUBJECT,
    API_QUEUE,
    API_SUBJECT,
    API_VERBS,
    DEAD_LETTER_SUBJECT,
    ROUTES,
    Delivery,
    Route,
)
from shared.streams import (
    GET_SUBJECT,
    INFO_SUBJECT,
    OWNER_SUBJECTS,
    READER_SUBJECTS,
    stream_name,
)

SERVICES = ("gateway", "engine", "tracer", "kvstore", "operator", "host", "console")
CLIENT = "client"
"""What a caller without a password may do: use the public API, nothing else."""

RESPONSE_EXPIRY = "24h"
"""How long a service may answer one request; a streamed answer uses many messages."""


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """Subjects that one NATS user may use."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answers: bool
    """Whether the user may publish to the reply subjects of what it received."""


def inbox_prefix(user: str) -> str:
    """Return the inbox of a user; each service has its own, so that none can listen to another's replies."""
    return "_INBOX" if user == CLIENT else f"_INBOX_{user}"


def _pattern(subject: str) -> str:
    return re.sub(r"\{\w+\}", "*", subject)


def _api_subjects() -> tuple[str, ...]:
    verbs = tuple(_pattern(API_SUBJECT.replace("{verb}", verb)) for verb in API_VERBS)
    return (*verbs, _pattern(API_CANCEL_SUBJECT))


def _stream_subjects(user: str, route: Route) -> list[str]:
    """Return what a user needs of JetStream for a route: one stream's, and nothing that deletes."""
    if route.stream is None:
        return []
    owned = OWNER_SUBJECTS if route.owner == user else ()
    read = READER_SUBJECTS if user in route.readers else ()
    return [subject.format(stream=route.stream.name) for subject in (*owned, *read)]


def _bucket_subjects(user: str, route: Route) -> list[str]:
    """Return what a user needs of JetStream for a record: its keeper makes the bucket, readers (and writers, who compare) read."""
    if route.bucket is None:
        return []
    name = stream_name(route.bucket)
    kept = OWNER_SUBJECTS if route.bucket.keeper == user else ()
    read = (
        (INFO_SUBJECT, GET_SUBJECT) if user in {route.owner, *route.writers, *route.readers} else ()
    )
    return [subject.format(stream=name) for subject in (*kept, *read)]


def permissions(user: str) -> Permissions:
    """Return what `user` (a service or `client`) may do. Raises `KeyError` for any other name."""
    if user == CLIENT:
        return Permissions(
            publish=(*_api_subjects(), "$SRV.>"),
            subscribe=(f"{inbox_prefix(CLIENT)}.>",),
            answers=False,
        )
    if user not in SERVICES:
        raise KeyError(user)
    publish = [_pattern(r.subject) for r in ROUTES.values() if user in (r.owner, *r.writers)]
    publish.append(DEAD_LETTER_SUBJECT.format(service=user))
    for route in ROUTES.values():
        publish += _stream_subjects(user, route)
        publish += _bucket_subjects(user, route)
    subscribe = [
        _pattern(route.subject)
        for route in ROUTES.values()
        if user in route.readers and route.bucket is None
    ]
    subscribe.append(f"{inbox_prefix(user)}.>")
    answers = any(r.delivery is Delivery.REQUEST and user in r.readers for r in ROUTES.values())
    if user == API_QUEUE:
        subscribe += [*_api_subjects(), "$SRV.>"]
        answers = True
    if user == "console":
        publish += [*_api_subjects(), "$SRV.>"]
    return Permissions(publish=tuple(publish), subscribe=tuple(subscribe), answers=answers)
