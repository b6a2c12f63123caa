"""`shared.bus.Bus` on a NATS server: connecting, and what connecting can fail with.

A server that goes away is waited for without end; one that is not there at start, or refuses us, stops the start.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from shared.acl import SERVICES, inbox_prefix
from shared.errors import BusError, UserError
from shared.natsclient import Client
from shared.natswire import CLIENT_BUFFER_BYTES, RETRY_S, NatsWire
from shared.settings import NatsSettings
from shared.typedbus import TypedBus

PING_INTERVAL_S = 5
MAX_OUTSTANDING_PINGS = 2
ATTEMPT_S = 2.0
MIN_PAYLOAD_BYTES = 512 << 10
"""Token messages and prompts up to this size travel inline."""
NATS_SCHEMES = ("nats", "tls")


class NatsBus(TypedBus):
    """The bus of one process. Make it with `connect`."""

    def __init__(self, wire: NatsWire, *, group: asyncio.TaskGroup, name: str) -> None:
        super().__init__(wire, group=group, name=name)
        self.client = wire.client
        """The raw client, for adapters that speak to other people's NATS programs. Its `flush` must not be given up early."""
        wire.report_loss = self.report_loss

    @classmethod
    async def connect(cls, settings: NatsSettings, *, group: asyncio.TaskGroup, name: str) -> Self:
        """Connect within `settings.connect_timeout_s`. Raises `UserError`.

        `name` is the service's name, `group` owns the bus's tasks: it fails where the server ends the connection for good.
        """
        label = re.sub(r"[^\w-]+", "-", name)
        client = Client()
        wire = NatsWire(
            client,
            group=group,
            name=label,
            outbound_bytes=settings.outbound_bytes,
            pending_messages=settings.pending_messages,
            pending_bytes=settings.pending_bytes,
        )
        await _Start(client, wire, settings, name).run()
        bus = cls(wire, group=group, name=settings.user or label)
        wire.start()
        try:
            await bus.open()
        except BusError as error:
            await wire.close()
            raise UserError(f"the NATS server let us in and went away: {error}") from error
        return bus


class _Start:
    """One start: connects, or says what to change."""

    def __init__(self, client: Client, wire: NatsWire, settings: NatsSettings, name: str) -> None:
        self._client = client
        self._wire = wire
        self._settings = settings
        self._name = name
        self._where = _without_password(settings.url)
        """The address without a password that may stand in it."""
        self._last_error: Exception | None = None
        self._started = False

    async def run(self) -> None:
        settings = self._settings
        options = _options(settings)
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                await self._client.connect(
                    name=self._name,
                    error_cb=self._on_error,
                    disconnected_cb=self._wire.on_disconnected,
                    reconnected_cb=self._wire.on_reconnected,
                    closed_cb=self._wire.on_closed,
                    reconnect_to_server_handler=self._wire.next_server,
                    **options,
                )
        except TimeoutError as error:
            await self._wire.end_client()
            raise self._no_server() from error
        except UserError:
            await self._wire.end_client()
            raise
        except ImportError as error:
            raise UserError(
                "NATS credentials files need a package that is missing", hint="pip install nkeys"
            ) from error
        except (
            BaseException
        ):  # cancelled, or what nobody foresaw: the connection must not outlive us
            self._wire.abort()
            raise
        self._started = True
        if self._client.max_payload < MIN_PAYLOAD_BYTES:
            size = self._client.max_payload
            await self._wire.end_client()
            raise UserError(
                f"the NATS server at {self._where} takes {size} bytes a message; Headrace needs {MIN_PAYLOAD_BYTES}",
                hint="raise max_payload in the server's configuration (1MB is its default)",
            )

    async def _on_error(self, error: Exception) -> None:
        if self._started:
            await self._wire.on_error(error)
            return
        self._last_error = error
        reason = str(error).lower()
        if "authorization" in reason or "authentication" in reason:
            raise UserError(
                f"the NATS server at {self._where} refuses user {self._settings.user or '(none)'!r}",
                hint="check nats.user and nats.password (or nats.password_file)",
            ) from error
        if isinstance(error, ssl.SSLError):
            raise UserError(
                f"no TLS with the NATS server at {self._where}: {error.reason or error}",
                hint="check nats.tls_ca, nats.tls_cert and nats.tls_key",
            ) from error

    def _no_server(self) -> UserError:
        why = f" ({self._last_error})" if self._last_error and str(self._last_error) else ""
        return UserError(
            f"no NATS server at {self._where} within {self._settings.connect_timeout_s:g} s{why}",
            hint="start one, or set nats.url",
        )


def _options(settings: NatsSettings) -> dict[str, Any]:
    """Return the client's options that follow from the settings. Raises `UserError`."""
    urls = [_checked_url(url.strip()) for url in settings.url.split(",")]
    options: dict[str, Any] = {
        "servers": urls,
        "inbox_prefix": inbox_prefix(settings.user) if settings.user in SERVICES else "_INBOX",
        "connect_timeout": min(ATTEMPT_S, settings.connect_timeout_s),
        "reconnect_time_wait": RETRY_S,
        "max_reconnect_attempts": -1,
        "ping_interval": PING_INTERVAL_S,
        "max_outstanding_pings": MAX_OUTSTANDING_PINGS,
        "pending_size": CLIENT_BUFFER_BYTES,
        "user": settings.user or None,
        "password": settings.password.reveal() or None,
        "token": settings.token.reveal() or None,
        "user_credentials": _creds(settings.creds_file),
    }
    tls = _tls(settings)
    if tls is not None:
        options["tls"] = tls
    return options


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        known = parts.scheme in NATS_SCHEMES and parts.hostname and (parts.port or True)
    except ValueError:
        known = False
    if not known:
        raise UserError(
            f"{_without_password(url)!r} is no NATS address",
            hint="set nats.url to something like nats://127.0.0.1:4222",
        )
    return url


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


def _creds(file: str) -> str | None:
    """Return the credentials file, looked into: nats-py would read it while connecting and fail there in its own words."""
    if not file:
        return None
    try:
        text = Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the NATS credentials in {file}: {error}") from error
    if "BEGIN NATS USER JWT" not in text or "BEGIN USER NKEY SEED" not in text:
        raise UserError(
            f"{file} is no NATS credentials file",
            hint="check nats.creds_file; `nsc generate creds` makes one",
        )
    return file


def _tls(settings: NatsSettings) -> ssl.SSLContext | None:
    files = (settings.tls_ca, settings.tls_cert, settings.tls_key)
    if not any(files):
        return None
    for file in files:
        if file and not Path(file).is_file():
            raise UserError(
                f"no file {file}", hint="check nats.tls_ca, nats.tls_cert, nats.tls_key"
            )
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca or None)
        if settings.tls_cert:
            context.load_cert_chain(settings.tls_cert, settings.tls_key or None)
    except ssl.SSLError as error:
        raise UserError(
            f"cannot use the TLS files of the bus: {error.reason or error}",
            hint="they must be PEM files, and the key must belong to the certificate",
        ) from error
    return context
