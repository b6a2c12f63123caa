"""The HTTP server on a real socket, and a client that sends and reads exactly what a test says. Knows no OpenAI."""

from __future__ import annotations

import asyncio
import ctypes
import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import uvloop

from services.gateway.http.exchange import Exchange
from services.gateway.http.server import HttpServer
from services.gateway.http.settings import HttpSettings
from services.gateway.http.shell import Shell, plain_error

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
SCENARIO_S = 30.0
SO_ATTACH_FILTER, BPF_RET = 26, 0x06
"""Of Linux; Python has no names for them."""
MAX_BODY_BYTES = 8 << 20


def run_on(loop: str, scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario to its end on a loop of the given kind."""

    async def bounded() -> None:
        async with asyncio.timeout(SCENARIO_S):
            await scenario()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(bounded())


def make_certificate(folder: Path) -> tuple[str, str]:
    """Make a self-signed certificate for localhost and its key; return their paths."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    openssl = shutil.which("openssl") or "openssl"
    subprocess.run(
        [openssl, "req", "-x509", "-nodes", "-days", "2", *curve, *names, *files],
        check=True,
        capture_output=True,
    )
    return str(cert), str(key)


class Answer(NamedTuple):
    """A response as it came off the wire."""

    status: int
    headers: dict[str, str]
    body: bytes


class Wire:
    """One client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.posted = 0
        """Requests with a body that were sent whole."""

    @classmethod
    async def open(
        cls, port: int, *, receive_bytes: int = 0, tls: ssl.SSLContext | None = None
    ) -> Wire:
        """Connect; `receive_bytes` limits what the kernel takes for us."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except BaseException:
            sock.close()
            raise
        limit, name = receive_bytes or 2**20, "localhost" if tls else None
        streams = await asyncio.open_connection(
            sock=sock, limit=limit, ssl=tls, server_hostname=name
        )
        return cls(*streams)

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    def get(self, path: str = "/", *fields: str) -> None:
        """Send a request without a body."""
        self.send(f"GET {path} HTTP/1.1\r\n{lines(fields)}\r\n".encode())

    def post(self, path: str, body: bytes, *fields: str) -> None:
        """Send a request with a body of stated length."""
        self.posted += 1
        self.send(
            f"POST {path} HTTP/1.1\r\n{lines(fields)}Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read the head of a response."""
        first, *rest = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = dict(line.split(": ", 1) for line in rest if line)
        return int(first.split(" ")[1]), fields

    async def chunk(self) -> bytes:
        """Read one chunk; empty: the last."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def answer(self, *, is_head: bool = False) -> Answer:
        """Read a response; raises `IncompleteReadError` or `ConnectionError` if it is cut short."""
        status, headers = await self.head()
        body = b""
        if is_head or status in (204, 304):
            pass
        elif "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            while piece := await self.chunk():
                body += piece
        else:
            body = await self.reader.read()
        return Answer(status, headers, body)

    async def rest(self) -> bytes:
        """Read until the server closes."""
        return await self.reader.read()

    async def is_closed(self, within_s: float) -> bool:
        """Whether the server closes within a time; what it sends is dropped."""
        try:
            async with asyncio.timeout(within_s):
                while await self.reader.read(65_536):
                    pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def stop_reading(self) -> None:
        """Take nothing more from the kernel."""
        cast(asyncio.Transport, self.writer.transport).pause_reading()

    def vanish(self) -> None:
        """Be as a host whose cable was pulled: nothing that comes is answered, not even by the kernel, and nothing says so."""
        drop_all = ctypes.create_string_buffer(struct.pack("HBBI", BPF_RET, 0, 0, 0))
        program = struct.pack("HP", 1, ctypes.addressof(drop_all))
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)

    def resume_reading(self) -> None:
        """Take again what the kernel has."""
        cast(asyncio.Transport, self.writer.transport).resume_reading()

    def half_close(self) -> None:
        """Send no more; TLS has no such thing and closes."""
        if self.writer.can_write_eof():
            self.writer.write_eof()
        else:
            self.writer.close()

    def close(self) -> None:
        """Leave."""
        self.writer.close()

    def reset(self) -> None:
        """Leave with a reset."""
        sock = self.writer.get_extra_info("socket")
        if sock is not None:  # else it is closed already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def lines(fields: tuple[str, ...]) -> str:
    """Return the host line and further ones."""
    return "".join(f"{field}\r\n" for field in ("Host: localhost", *fields))


class Served:
    """A running server, what reached its handler, and what went wrong on the loop."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.exchanges: list[Exchange] = []
        self.wires: list[Wire] = []
        self.faults: list[str] = []
        """Messages given to the loop's exception handler; must be empty at the end unless the test empties it."""

    @property
    def port(self) -> int:
        """The port listened on."""
        return self.server.port

    @property
    def shell(self) -> Shell:
        """What the connections share."""
        assert self.server._shell is not None
        return self.server._shell

    async def wire(self, **options: Any) -> Wire:
        """Connect; closed at the end."""
        wire = await Wire.open(self.port, **options)
        self.wires.append(wire)
        return wire

    async def exchange(self, number: int = 0) -> Exchange:
        """Return an exchange once it has reached the handler."""
        await until(lambda: len(self.exchanges) > number)
        return self.exchanges[number]


@asynccontextmanager
async def served(
    handler: Callable[[Exchange], None] = lambda _: None,
    *,
    error_body: Callable[[int, str], tuple[str, bytes]] = plain_error,
    sock: socket.socket | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    **settings: Any,
) -> AsyncIterator[Served]:
    """Serve; the handler may leave exchanges unanswered for the test. At the end nothing may be left."""

    def handle(exchange: Exchange) -> None:
        it.exchanges.append(exchange)
        handler(exchange)

    options = HttpSettings(**({"port": 0, "sweep_s": 0.02, "linger_s": 0.5} | settings))
    server = HttpServer(options, handle, max_body_bytes=max_body_bytes, error_body=error_body)
    it = Served(server)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: it.faults.append(str(context)))
    await server.start(sock)
    try:
        yield it
    finally:
        for wire in it.wires:
            wire.writer.transport.abort()
        await server.drain(0.1)
        loop.set_exception_handler(None)
    await until(lambda: not server.stages())
    assert not it.faults, it.faults


async def until(is_so: Callable[[], object], *, timeout_s: float = 5.0) -> None:
    """Return when something holds."""
    async with asyncio.timeout(timeout_s):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
