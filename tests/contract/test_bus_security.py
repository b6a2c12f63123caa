"""How the NATS bus proves who it is and checks who it talks to: TLS, client certificates, tokens, credentials files."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nkeys
import pytest

from shared.errors import UserError
from shared.messages import Cancel
from shared.settings import NatsSettings, Secret
from tests.support.buses import NatsWorld, World, in_thread, start, until
from tests.support.certificates import Authority
from tests.support.nats_server import NatsServer
from tests.support.samples import E1, cancel


@contextmanager
def serving(folder: Path, config: str) -> Iterator[NatsServer]:
    server = NatsServer(folder, config=config)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def tls(authority: Authority, *, verify: bool = False) -> str:
    certificate, key = authority.issue("server")
    return f'tls {{ cert_file: "{certificate}", key_file: "{key}", ca_file: "{authority.ca}", verify: {str(verify).lower()} }}\n'


def check_talk(server: NatsServer, **settings: object) -> None:
    """Check that a message arrives, also after the server ended and came back."""

    async def scenario(world: World) -> None:
        bus = await world.bus()
        got: list[int] = []
        await bus.subscribe(Cancel, lambda m: got.append(m.stream), engine=E1)
        bus.publish(cancel(1))
        await until(lambda: got)

        server.kill()
        await until(lambda: not bus.is_connected)
        await in_thread(server.start)
        bus.publish(cancel(2))
        await until(lambda: 2 in got, timeout_s=10)

    NatsWorld(server.url, **settings).run(scenario)


def refused(settings: NatsSettings) -> UserError:
    """Return why a connection fails."""
    with pytest.raises(UserError) as failure:
        start(settings)
    return failure.value


def test_tls_with_the_servers_own_authority(tmp_path: Path):
    authority = Authority(tmp_path / "ca")

    with serving(tmp_path, tls(authority)) as server:
        check_talk(server, tls_ca=str(authority.ca))


def test_a_server_of_another_authority_is_not_trusted(tmp_path: Path):
    stranger = Authority(tmp_path / "stranger")

    with serving(tmp_path, tls(Authority(tmp_path / "ca"))) as server:
        start_s = time.monotonic()
        error = refused(NatsSettings(url=server.url, tls_ca=str(stranger.ca), connect_timeout_s=30))

    assert "no TLS with the NATS server" in str(error)
    assert "tls_ca" in error.hint
    assert time.monotonic() - start_s < 10


def test_a_client_certificate_where_the_server_wants_one(tmp_path: Path):
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("gateway")
    files = {"tls_ca": str(authority.ca), "tls_cert": str(certificate), "tls_key": str(key)}

    with serving(tmp_path, tls(authority, verify=True)) as server:
        check_talk(server, **files)
        error = refused(NatsSettings(url=server.url, tls_ca=str(authority.ca), connect_timeout_s=2))

    assert "NATS server" in str(error)


def test_a_key_of_another_certificate_is_named(tmp_path: Path):
    authority = Authority(tmp_path)
    certificate, _ = authority.issue("one")
    _, key = authority.issue("two")

    error = refused(
        NatsSettings(tls_ca=str(authority.ca), tls_cert=str(certificate), tls_key=str(key))
    )

    assert "cannot use the TLS files" in str(error)


def test_a_token(tmp_path: Path):
    with serving(tmp_path, 'authorization { token: "open sesame" }\n') as server:
        check_talk(server, token=Secret("open sesame"))
        error = refused(NatsSettings(url=server.url, token=Secret("wrong"), connect_timeout_s=30))

    assert "refuses" in str(error)


def _pair(prefix: int) -> Any:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), prefix))


def _jwt(issuer: Any, subject: Any, kind: str, **claims: object) -> str:
    """Return a NATS JWT: its id is the hash of its own claims."""
    body: dict[str, object] = {
        "iat": int(time.time()),  # noqa: TID251 - what the server compares with its clock
        "iss": issuer.public_key.decode(),
        "sub": subject.public_key.decode(),
        "name": kind,
        "nats": {"type": kind, "version": 2, **claims},
    }
    body["jti"] = (
        base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode().rstrip("=")
    )
    parts = b".".join(
        _base64(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)
    )
    return (parts + b"." + _base64(issuer.sign(parts))).decode()


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def test_a_credentials_file(tmp_path: Path):
    operator, account, user = (
        _pair(kind)
        for kind in (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER)
    )
    limits = {
        "subs": -1,
        "data": -1,
        "payload": -1,
        "imports": -1,
        "exports": -1,
        "conn": -1,
        "leaf": -1,
    }
    config = (
        f"operator: {_jwt(operator, operator, 'operator')}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account.public_key.decode()}: {_jwt(operator, account, 'account', limits=limits)} }}\n"
        "# no jetstream\n"
    )
    jwt = _jwt(account, user, "user", subs=-1, data=-1, payload=-1)
    creds = tmp_path / "user.creds"
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )

    with serving(tmp_path, config) as server:
        check_talk(server, creds_file=str(creds))
        error = refused(NatsSettings(url=server.url, connect_timeout_s=30))

    assert "refuses" in str(error)


def test_a_missing_credentials_file_is_named():
    error = refused(NatsSettings(creds_file="/nowhere/user.creds"))

    assert "cannot read the NATS credentials in /nowhere/user.creds" in str(error)


def test_a_credentials_file_without_credentials_is_named(tmp_path: Path):
    creds = tmp_path / "user.creds"
    creds.write_text("nothing\n")

    error = refused(NatsSettings(creds_file=str(creds)))

    assert "user.creds is no NATS credentials file" in str(error)
