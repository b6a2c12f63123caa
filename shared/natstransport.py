"""nats-py's TCP transport, made safe for uvloop and for servers that accept and then fall silent or break off.

uvloop raises RuntimeError where asyncio ignores a write to a closed connection; nats-py does not expect it, and its reconnecting
would end for good without a word (tried: a server that greets and resets). Here it is ignored as well: the next read or drain tells.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from urllib.parse import ParseResult

from typing_extensions import override

from shared.natsclient import TcpTransport

GOODBYE_S = 1.0
"""What unsent bytes of a closed connection get to leave."""


class SteadyTransport(TcpTransport):
    """One transport for the life of a client; each attempt to connect drops the connection of the one before."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # nats-py's gap

    @override
    def __bool__(self) -> bool:
        """Be true also before the first connection: the client would make a transport of its own else."""
        return True

    def abort(self) -> None:
        """Drop the connection without a goodbye; nats-py leaves it open where an attempt or a goodbye fails on a frozen server."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    @override
    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        # Not nats-py's own: `wait_for` loses a connection that opens in the moment in which it gives up, and nobody closes it.
        self.abort()
        async with asyncio.timeout(connect_timeout):
            reader, writer = await asyncio.open_connection(
                host=uri.hostname, port=uri.port, limit=buffer_size
            )
        self._bare_io_reader = self._io_reader = reader
        self._bare_io_writer = self._io_writer = writer

    @override
    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: int,
    ) -> None:
        try:
            await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        except (
            RuntimeError,
            TypeError,
        ) as error:  # both are said of a connection that has just been closed
            raise ConnectionResetError(str(error)) from error

    @override
    async def wait_closed(self) -> None:
        """Wait, but not for a dead peer: a connection closes only once all is sent, and nothing is sent where nobody takes it."""
        try:
            async with asyncio.timeout(GOODBYE_S):
                await super().wait_closed()  # type: ignore[no-untyped-call] # nats-py's gap
        except TimeoutError:
            self.abort()

    @override
    def write(self, payload: bytes) -> None:
        with suppress(RuntimeError):
            super().write(payload)  # type: ignore[no-untyped-call] # nats-py's gap

    @override
    def writelines(self, payload: list[bytes]) -> None:
        with suppress(RuntimeError):
            super().writelines(payload)  # type: ignore[no-untyped-call] # nats-py's gap
