"""Renders the configuration of a NATS server for Headrace: loopback, JetStream, one least-privilege user per service.

Pure: returns text. The same text serves `headrace up` (random passwords) and `deploy/nats/nats.conf` (passwords from the environment).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from shared.acl import CLIENT, RESPONSE_EXPIRY, SERVICES, Permissions, inbox_prefix, permissions
from shared.streams import total_bytes

MAX_PAYLOAD_BYTES = 8 << 20
"""Room for every prompt that the HTTP door takes (4 MiB) beside what was said already; NATS advises against more (decision 6).
A server with its own default of 1 MiB will do as well: longer prompts get a 413 there."""
MAX_PENDING_BYTES = 64 << 20
WRITE_DEADLINE = "10s"
MAX_STORE_BYTES = 4 << 30
MAX_MEMORY_BYTES = 2 * total_bytes()
"""Twice what the streams may hold: a server that is near its own limit refuses what a stream would still make room for."""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between installations."""

    host: str = "127.0.0.1"
    port: int = 4222
    store_dir: str
    passwords: Mapping[str, str]
    """Password of each service; a value that begins with `$` is a variable that the server reads from its environment."""
    open_api: bool = True
    """Whether callers without a password may use the public API (right on loopback)."""
    monitor_port: int | None = None


def _quoted(value: str) -> str:
    return value if value.startswith("$") else json.dumps(value)


def _permission_lines(p: Permissions) -> list[str]:
    lines = [
        f"        publish: {{ allow: {json.dumps(list(p.publish))} }}",
        f"        subscribe: {{ allow: {json.dumps(list(p.subscribe))} }}",
    ]
    if p.answers:
        lines.append(f'        allow_responses: {{ max: -1, expires: "{RESPONSE_EXPIRY}" }}')
    return lines


def _user_block(user: str, password: str) -> list[str]:
    return [
        "    {",
        f"      user: {user}",
        f"      password: {_quoted(password)}",
        "      permissions: {",
        *_permission_lines(permissions(user)),
        "      }",
        "    }",
    ]


def render(options: ServerOptions) -> str:
    """Return the text of a `nats.conf`. Raises `KeyError` where a service has no password."""
    users: list[str] = []
    for service in SERVICES:
        users += _user_block(service, options.passwords[service])
    if options.open_api:
        users += _user_block(CLIENT, CLIENT)
    lines = [
        "# Made by shared/nats_config.py from the routes of the contract: change it there.",
        f"listen: {json.dumps(f'{options.host}:{options.port}')}",
        *(
            [f"http: {json.dumps(f'{options.host}:{options.monitor_port}')}"]
            if options.monitor_port
            else []
        ),
        f"max_payload: {MAX_PAYLOAD_BYTES}",
        f"max_pending: {MAX_PENDING_BYTES}",
        f'write_deadline: "{WRITE_DEADLINE}"',
        "jetstream: {",
        f"  store_dir: {json.dumps(options.store_dir)}",
        f"  max_file_store: {MAX_STORE_BYTES}",
        f"  max_memory_store: {MAX_MEMORY_BYTES}",
        "}",
        "authorization: {",
        "  users: [",
        *users,
        "  ]",
        "}",
    ]
    if options.open_api:
        lines.append(f"no_auth_user: {CLIENT}")
    return "\n".join(lines) + "\n"


__all__ = ["ServerOptions", "inbox_prefix", "render"]
