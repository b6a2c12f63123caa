"""The table of routes is whole: each message has a route or answers one, an owner that exists, readers, and a golden sample."""

from __future__ import annotations

import string

import msgspec
import pytest

import shared.messages
from shared.codec import tag_of
from shared.messages import ALL_MESSAGES, ROUTES, Delivery, Message
from tests.contract.golden_samples import read_index
from tests.house.source_tree import ROOT

SERVICES = {
    entry.name for entry in (ROOT / "services").iterdir() if (entry / "__init__.py").is_file()
}
BY_NAME = {kind.__name__: kind for kind in ALL_MESSAGES}


def subclasses(kind: type[Message]) -> set[type[Message]]:
    """Return all types derived from `kind`."""
    return {kind for child in kind.__subclasses__() for kind in {child, *subclasses(child)}}


def test_every_message_has_a_route_or_is_the_reply_of_one():
    """`ALL_MESSAGES` is made of routes and their replies; what is declared and not in it could never travel."""
    declared = {
        kind for kind in subclasses(Message) if kind.__module__.startswith(shared.messages.__name__)
    }

    assert declared == set(ALL_MESSAGES)


def test_no_two_messages_share_a_tag():
    tags = [tag_of(kind) for kind in ALL_MESSAGES]

    assert sorted(set(tags)) == sorted(tags)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_tag_names_owner_message_and_version(name: str):
    owner, _, version = tag_of(BY_NAME[name]).rsplit(".", 2)

    assert owner in SERVICES
    assert version.startswith("v")
    assert version[1:].isdigit()


@pytest.mark.parametrize("name", BY_NAME)
def test_a_message_has_a_golden_sample(name: str):
    assert tag_of(BY_NAME[name]) in {entry.tag for entry in read_index().values()}


@pytest.mark.parametrize("kind", ROUTES, ids=lambda kind: kind.__name__)
def test_a_route_joins_services_that_exist(kind: type[Message]):
    route = ROUTES[kind]

    assert route.owner in SERVICES
    assert route.readers
    assert set(route.readers) <= SERVICES
    assert tag_of(kind).startswith(f"{route.owner}.")
    assert (route.delivery is Delivery.REQUEST) == bool(route.replies)
    assert {tag_of(reply).partition(".")[0] for reply in route.replies} <= set(route.readers)


@pytest.mark.parametrize("kind", ROUTES, ids=lambda kind: kind.__name__)
def test_subject_and_key_are_made_of_the_messages_own_fields(kind: type[Message]):
    route = ROUTES[kind]
    fields = {field.name for field in msgspec.structs.fields(kind)}
    used = {name for _, name, _, _ in string.Formatter().parse(route.subject) if name}

    assert used <= fields
    assert route.key is None or route.key in fields
    prefix = "hr." if route.bucket is None else f"$KV.{route.bucket.name}."
    assert route.subject.startswith(prefix)
    assert (route.bucket is not None) == (route.delivery is Delivery.RECORD)


def test_no_two_routes_share_a_subject():
    subjects = [route.subject for route in ROUTES.values()]

    assert sorted(set(subjects)) == sorted(subjects)
