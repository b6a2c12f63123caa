"""The server: listens, looks at deadlines, counts, and stops in order. Does not know what it serves."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter

from services.gateway.http.connection import Connection
from services.gateway.http.listeners import (
    connections_allowed,
    open_listeners,
    prepare_listener,
    tls_context,
)
from services.gateway.http.settings import HttpSettings
from services.gateway.http.shell import (
    ErrorBody,
    Handler,
    HttpCounts,
    OnUnserved,
    Shell,
    not_told,
    plain_error,
)

_POLL_S = 0.02
_IDLE_GRACE_S = 0.5
"""When draining, idle connections stay this long: a request that is on its way already gets its answer instead of a closed door."""


class HttpServer:
    """An HTTP/1 server; use `start`, then `close_listeners` and `drain`. Not restartable."""

    def __init__(
        self,
        settings: HttpSettings,
        handler: Handler,
        *,
        max_body_bytes: int,
        error_body: ErrorBody = plain_error,
        on_unserved: OnUnserved = not_told,
    ) -> None:
        """A body over `max_body_bytes` is refused with 413, before it is read where Content-Length tells."""
        self._settings = settings
        self._max_body_bytes = max_body_bytes
        self._handler = handler
        self._error_body = error_body
        self._on_unserved = on_unserved
        self._shell: Shell | None = None
        self._servers: list[asyncio.Server] = []
        self._port = 0
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._port

    @property
    def max_connections(self) -> int:
        """What the settings ask for, or as many as the process's file limit allows if that is less."""
        return self._running.max_connections

    @property
    def counts(self) -> HttpCounts:
        """Totals since the start."""
        return self._running.counts

    def stages(self) -> Counter[str]:
        """Count open connections by stage: idle, reading, waiting, streaming, closing. Walks over all of them: for scrapes."""
        return Counter(connection.stage for connection in self._running.connections)

    async def start(self, sock: socket.socket | None = None) -> None:
        """Listen, on the given bound TCP socket or on host and port. Raises `UserError` when the port is taken and the like."""
        settings, loop = self._settings, asyncio.get_running_loop()
        tls = tls_context(settings)
        shell = Shell(
            settings,
            self._handler,
            self._error_body,
            on_unserved=self._on_unserved,
            max_body_bytes=self._max_body_bytes,
        )
        shell.max_connections = connections_allowed(settings.max_connections)
        if sock is None:
            listeners = open_listeners(settings)
        else:
            prepare_listener(sock, settings)
            listeners = [sock]
        self._shell = shell
        self._port = listeners[0].getsockname()[1]
        for listener in listeners:
            server = await loop.create_server(
                lambda: Connection(shell),
                sock=listener,
                backlog=settings.backlog,
                ssl=tls,
                ssl_handshake_timeout=settings.head_timeout_s if tls else None,
            )
            self._servers.append(server)
        self._sweep()

    def close_listeners(self) -> None:
        """Take no new connections. A second call changes nothing."""
        for server in self._servers:
            server.close()

    async def drain(self, deadline_s: float) -> int:
        """Let requests finish, end idle connections, drop what is left after the deadline; return how many were dropped.

        Answers that begin from now on say `Connection: close`. Closes the listeners if that was not done.
        """
        self.close_listeners()
        shell = self._running
        shell.is_draining = True
        begun = shell.loop.time()
        while shell.connections and shell.loop.time() - begun < deadline_s:
            if shell.loop.time() - begun >= min(_IDLE_GRACE_S, deadline_s / 2):
                for connection in list(shell.connections):
                    connection.close_if_idle()
            await asyncio.sleep(_POLL_S)
        dropped = list(shell.connections)
        for connection in dropped:
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.sleep(0)  # the transports call connection_lost
        return len(dropped)

    @property
    def _running(self) -> Shell:
        if self._shell is None:
            raise RuntimeError("the server was not started")
        return self._shell

    def _sweep(self) -> None:
        shell = self._running
        self._sweeper = shell.loop.call_later(self._settings.sweep_s, self._sweep)
        shell.heads.refresh()
        now = shell.loop.time()
        for connection in list(shell.connections):
            connection.sweep(now)
