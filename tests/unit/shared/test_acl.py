"""Permissions follow the routes: each service its own subjects, callers the public API only."""

from __future__ import annotations

import pytest

from shared.acl import CLIENT, SERVICES, inbox_prefix, permissions
from shared.messages import ROUTES, LedgerBatch, ServiceRecord
from shared.nats_config import ServerOptions, render


def pattern(subject: str) -> str:
    return ".".join("*" if token.startswith("{") else token for token in subject.split("."))


@pytest.mark.parametrize("user", SERVICES)
def test_a_service_publishes_what_it_owns_and_reads_what_it_is_named_for(user):
    allowed = permissions(user)

    for route in ROUTES.values():
        subject = pattern(route.subject)
        writes = user in (route.owner, *route.writers)
        assert writes == (subject in allowed.publish), subject
        # Records are read by asking for them; nobody needs to hear them being written.
        reads = user in route.readers and route.bucket is None
        assert reads == (subject in allowed.subscribe), subject


def test_a_caller_without_a_password_reaches_the_public_api_and_nothing_else():
    allowed = permissions(CLIENT)

    assert all(subject.startswith(("hr.api.", "$SRV.")) for subject in allowed.publish)
    assert ("_INBOX.>",) == allowed.subscribe
    assert not allowed.answers


def test_a_stream_is_shaped_by_its_owner_and_read_by_its_readers():
    stream = ROUTES[LedgerBatch].stream
    assert stream is not None
    of_jetstream = {
        user: [s for s in permissions(user).publish if s.startswith("$JS") and "KV_" not in s]
        for user in SERVICES
    }

    assert [
        f"$JS.API.STREAM.CREATE.{stream.name}",
        f"$JS.API.STREAM.UPDATE.{stream.name}",
    ] == of_jetstream["gateway"]
    read = [f"$JS.API.STREAM.INFO.{stream.name}", f"$JS.API.DIRECT.GET.{stream.name}"]
    assert [read, read] == [of_jetstream["tracer"], of_jetstream["console"]]
    assert [] == of_jetstream["engine"]


def test_a_bucket_is_made_by_its_keeper_written_by_its_writers_and_read_by_its_readers():
    route = ROUTES[ServiceRecord]
    assert route.bucket is not None
    stream = f"KV_{route.bucket.name}"
    made = {f"$JS.API.STREAM.CREATE.{stream}", f"$JS.API.STREAM.UPDATE.{stream}"}
    read = {f"$JS.API.STREAM.INFO.{stream}", f"$JS.API.DIRECT.GET.{stream}"}

    for user in SERVICES:
        allowed = set(permissions(user).publish)
        assert made <= allowed if user == route.bucket.keeper else not made & allowed
        uses = user in {route.owner, *route.writers, *route.readers}
        assert read <= allowed if uses else not read & allowed
        assert f"$KV.{route.bucket.name}.>" not in allowed


def test_the_server_has_memory_for_all_streams():
    text = render(ServerOptions(store_dir="/d", passwords=dict.fromkeys(SERVICES, "x")))
    kept_bytes = sum(route.stream.max_bytes for route in ROUTES.values() if route.stream)

    assert f"max_memory_store: {2 * kept_bytes}" in text


def test_no_two_users_share_an_inbox():
    prefixes = [inbox_prefix(user) for user in (*SERVICES, CLIENT)]

    assert len(prefixes) == len(set(prefixes))
    assert not any(a != b and f"{a}.".startswith(f"{b}.") for a in prefixes for b in prefixes)


def test_an_unknown_user_has_no_permissions():
    with pytest.raises(KeyError):
        permissions("somebody")


def test_the_server_configuration_holds_every_user_and_listens_on_loopback():
    text = render(
        ServerOptions(store_dir="/data/js", passwords={name: f"pw-{name}" for name in SERVICES})
    )

    assert 'listen: "127.0.0.1:4222"' in text
    for name in (*SERVICES, CLIENT):
        assert f"user: {name}" in text


def test_a_password_may_come_from_the_servers_environment():
    text = render(
        ServerOptions(
            store_dir="/data", passwords={name: f"$PW_{name.upper()}" for name in SERVICES}
        )
    )

    assert "password: $PW_ENGINE" in text


def test_the_api_can_be_closed_to_callers_without_a_password():
    text = render(
        ServerOptions(store_dir="/d", passwords=dict.fromkeys(SERVICES, "x"), open_api=False)
    )

    assert "no_auth_user" not in text
