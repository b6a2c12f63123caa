"""Compares two HTTP shells: our Protocol on llhttp and aiohttp's low-level server with direct transport writes.

Measures CPU time of the server process (pinned to one CPU, the load comes from another) per streamed piece and per short request.
Prints JSON. "unmerged" is our server with a flush after each write. The decision: docs/decisions/0001-http-shell.md.
Does not measure the gateway: no bus, no validation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

import uvloop
from aiohttp import web

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from services.gateway.http.exchange import Exchange  # noqa: E402 - needs the path above
from services.gateway.http.server import HttpServer  # noqa: E402
from services.gateway.http.settings import HttpSettings  # noqa: E402

MAX_BODY_BYTES = 8 << 20

CHUNKS = 64
WARM_UP_S = 0.3
FEWEST_PIECES = 300
"""A window with fewer was starved by other work on the machine and says nothing."""
MARK = b'"id":"chatcmpl'
"""Stands once in each piece and in each short answer."""
SHELLS = ("protocol", "unmerged", "aiohttp")

Stream = tuple[Callable[[bytes], None], Callable[[], None], Callable[[], int]]
"""Write a piece, end, bytes that the client is behind."""


class Case(NamedTuple):
    """One kind of load; without pieces it is a short request."""

    path: str
    step_s: float
    pieces: int
    clients: int


class Server(NamedTuple):
    """A server process."""

    pid: int
    port: int


CASES = (
    Case("paced", 0.010, 1, 128),
    Case("paced-2-a-tick", 0.010, 2, 128),
    Case("saturated", 0.0, 1, 128),
    Case("saturated-4-a-tick", 0.0, 4, 128),
    Case("short", 0.0, 0, 32),
)
EVENT = (
    b'data: {"id":"chatcmpl-0000000000000000","object":"chat.completion.chunk","created":1790000000,'
    + (
        b'"model":"smollm2","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
    )
)
BODY = (
    b'{"model":"smollm2","messages":[{"role":"user","content":"'
    + b"x" * 400
    + b'"}],"stream":true}'
)
ANSWER = (
    b'{"id":"chatcmpl-0000000000000000","object":"chat.completion","choices":[' + b"x" * 400 + b"]}"
)
REQUEST = (
    b"POST /%b HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n"
    b"Accept: application/json\r\nContent-Type: application/json\r\nUser-Agent: OpenAI/Python 1.99.1\r\n"
    b"X-Stainless-Lang: python\r\nX-Stainless-OS: Linux\r\nX-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\n"
    b"Authorization: Bearer sk-0123456789abcdef\r\nContent-Length: %d\r\n\r\n%b"
)


# Servers (child process)


class Source:
    """Stands for the bus: each step hands every live stream its next pieces from one callback. Idle without streams."""

    def __init__(self, step_s: float, pieces_per_step: int) -> None:
        self._step_s = step_s
        self._pieces = pieces_per_step
        self._live: dict[Stream, int] = {}
        self._loop = asyncio.get_running_loop()

    def add(self, stream: Stream) -> None:
        """Begin a stream of CHUNKS pieces."""
        if not self._live:
            self._loop.call_soon(self._step)
        self._live[stream] = CHUNKS

    def _step(self) -> None:
        for stream, left in list(self._live.items()):
            write, end, behind = stream
            if behind() > 0:
                continue  # saturated: the client is behind
            for _ in range(self._pieces):
                write(EVENT)
            if left > self._pieces:
                self._live[stream] = left - self._pieces
            else:
                del self._live[stream]
                end()
        if self._live:
            self._loop.call_later(self._step_s, self._step)


async def serve_protocol(sources: dict[str, Source], *, merged: bool) -> int:
    """Our server; `merged=False` flushes after each write."""

    def handle(exchange: Exchange) -> None:
        source = sources.get(exchange.path)
        if source is None:
            exchange.respond(200, ANSWER)
            return
        exchange.start_stream()

        def write_through(data: bytes) -> None:
            exchange.write(data)
            exchange.flush()

        write = exchange.write if merged else write_through
        source.add((write, exchange.end, lambda: exchange.buffered_bytes))

    server = HttpServer(HttpSettings(port=0), handle, max_body_bytes=MAX_BODY_BYTES)
    await server.start()
    return server.port


async def serve_aiohttp(sources: dict[str, Source]) -> int:
    """aiohttp without its application layer, writing straight to its transport."""
    loop = asyncio.get_running_loop()
    headers = {"content-type": "text/event-stream; charset=utf-8"}

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        source = sources.get(request.path)
        if source is None:
            return web.Response(body=ANSWER, content_type="application/json")
        response = web.StreamResponse(headers=headers)
        response.enable_chunked_encoding()
        await response.prepare(request)
        transport, ended = request.transport, loop.create_future()

        def write(data: bytes) -> None:
            if not transport.is_closing():
                transport.write(b"%x\r\n%b\r\n" % (len(data), data))

        def behind() -> int:
            return 0 if transport.is_closing() else transport.get_write_buffer_size()

        source.add((write, lambda: ended.set_result(None), behind))
        await ended
        await response.write_eof()
        return response

    server = await loop.create_server(web.Server(handle), "127.0.0.1", 0, backlog=2048)
    return int(server.sockets[0].getsockname()[1])


async def serve(shell: str) -> None:
    """Serve on CPU 0 until killed; print the port."""
    os.sched_setaffinity(0, {0})
    sources = {f"/{case.path}": Source(case.step_s, case.pieces) for case in CASES if case.pieces}
    if shell == "aiohttp":
        port = await serve_aiohttp(sources)
    else:
        port = await serve_protocol(sources, merged=shell == "protocol")
    print(port, flush=True)
    await asyncio.Event().wait()


# Load (parent process)


class Client(asyncio.Protocol):
    """Counts pieces; sends its request again whenever the answer has ended."""

    def __init__(self, request: bytes, end: bytes) -> None:
        self._request, self._end = request, end
        self._transport: asyncio.Transport
        self._tail = b""
        self.pieces = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count, and ask again at the end."""
        self.pieces += data.count(MARK)
        tail = self._tail + data if len(data) < len(self._end) else data
        self._tail = tail[-len(self._end) :]
        if tail.endswith(self._end):
            self._tail = b""
            self._transport.write(self._request)


class Sample(NamedTuple):
    """What one window of one case showed."""

    pieces: int
    took_s: float
    cpu_s: float
    """Of the server process."""
    user_s: float
    """The part outside the kernel: what a server's own code costs. Coarse (10 ms), so to be added up over windows."""


def cpu_times_s(pid: int) -> tuple[float, float]:
    """Return CPU time of a process's main thread (both servers have only that), and the part outside the kernel."""
    process = Path(f"/proc/{pid}")
    user_ticks = (process / "stat").read_text().rpartition(")")[2].split()[11]
    cpu_ns = (process / "schedstat").read_text().split()[0]
    return int(cpu_ns) / 1e9, int(user_ticks) / os.sysconf("SC_CLK_TCK")


async def load(server: Server, case: Case, duration_s: float) -> Sample:
    """Count pieces, or answers, and what they cost the server."""
    request = REQUEST % (case.path.encode(), len(BODY), BODY)
    end = b"0\r\n\r\n" if case.pieces else ANSWER[-8:]
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: Client(request, end), "127.0.0.1", server.port)
        for _ in range(case.clients)
    ]

    def pieces() -> int:
        return sum(client.pieces for _, client in made)

    await asyncio.sleep(WARM_UP_S)
    count, (cpu, user), at = pieces(), cpu_times_s(server.pid), time.perf_counter()
    await asyncio.sleep(duration_s)
    cpu_now, user_now = cpu_times_s(server.pid)
    took = time.perf_counter() - at
    sample = Sample(pieces() - count, took, cpu_now - cpu, user_now - user)
    for transport, _ in made:
        transport.abort()
    await asyncio.sleep(0.05)
    return sample


def start_server(shell: str) -> tuple[subprocess.Popen[bytes], Server]:
    """Start a server process."""
    child = subprocess.Popen(
        [sys.executable, __file__, "--serve", shell],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    return child, Server(child.pid, int(child.stdout.readline()))


def compare(rounds: int, duration_s: float) -> dict[str, dict[str, dict[str, float]]]:
    """Measure all cases on all shells in turn, so that noise of the machine meets all alike; report the best and the median."""
    started = {shell: start_server(shell) for shell in SHELLS}
    seen: dict[tuple[str, str], list[Sample]] = {}
    try:
        for number in range(rounds):
            for case in CASES:
                turn = number % len(SHELLS)
                for shell in SHELLS[turn:] + SHELLS[:turn]:
                    server = started[shell][1]
                    sample = uvloop.run(load(server, case, duration_s))
                    if sample.pieces >= FEWEST_PIECES:
                        seen.setdefault((case.path, shell), []).append(sample)
    finally:
        for child, _ in started.values():
            child.kill()
            child.wait()
    table: dict[str, dict[str, dict[str, float]]] = {}
    for (path, shell), samples in seen.items():
        cpu_us = [sample.cpu_s / sample.pieces * 1e6 for sample in samples]
        user_s, pieces = (
            sum(sample.user_s for sample in samples),
            sum(sample.pieces for sample in samples),
        )
        table.setdefault(path, {})[shell] = {
            "cpu_us_best": round(min(cpu_us), 2),
            "cpu_us_median": round(statistics.median(cpu_us), 2),
            "user_us_mean": round(user_s / pieces * 1e6, 2),
            "per_s_best": round(max(sample.pieces / sample.took_s for sample in samples)),
        }
    return table


# Awkward clients

POST = b"POST /short HTTP/1.1\r\nHost: a\r\n"
PROBES = {
    "half a head": b"GET /short HTTP/1.1\r\nHo",
    "half a body": POST + b"Content-Length: 9\r\n\r\nabc",
    "no byte at all": b"",
    "1 GB declared": POST + b"Content-Length: 1000000000\r\n\r\n",
    "190 fields, 57 KiB": POST
    + b"".join(b"X-%d: %b\r\n" % (n, b"v" * 290) for n in range(190))
    + b"\r\n",
    "10,000 fields": POST + b"A: b\r\n" * 10_000 + b"\r\n",
    "both framings": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "gzip, chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "bare LF": b"GET /short HTTP/1.1\nHost: a\n\n",
    "no host": b"GET /short HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /short HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "path not UTF-8": b"GET /%ff HTTP/1.1\r\nHost: a\r\n\r\n",
    "h2c upgrade with body": POST
    + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc",
}
PATIENCE_S = 25.0


async def probe(port: int, data: bytes) -> str:
    """Return status and when it came, `closed`, or `nothing` after PATIENCE_S."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = time.perf_counter()
    writer.write(data)
    try:
        async with asyncio.timeout(PATIENCE_S):
            line = await reader.readline()
    except TimeoutError:
        return "nothing"
    except ConnectionError:
        line = b""
    finally:
        writer.close()
    what = line.split(b" ")[1].decode() if line else "closed"
    return f"{what} after {time.perf_counter() - begun:.0f} s"


async def probe_all(port: int) -> dict[str, str]:
    """Try all probes at once."""
    answers = await asyncio.gather(*[probe(port, data) for data in PROBES.values()])
    return dict(zip(PROBES, answers, strict=True))


def probe_shells() -> dict[str, dict[str, str]]:
    """Return what each awkward client gets from both servers."""
    found: dict[str, dict[str, str]] = {name: {} for name in PROBES}
    for shell in ("protocol", "aiohttp"):
        child, server = start_server(shell)
        try:
            for name, answer in uvloop.run(probe_all(server.port)).items():
                found[name][shell] = answer
        finally:
            child.kill()
            child.wait()
    return found


def main() -> None:
    """Serve (child) or compare (parent)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", choices=SHELLS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--probes", action="store_true", help="ask awkward clients' questions")
    args = parser.parse_args()
    if args.serve:
        uvloop.run(serve(args.serve))
        return
    if args.probes:
        print(json.dumps(probe_shells(), indent=1))
        return
    os.sched_setaffinity(0, {1})
    report = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "rounds": args.rounds,
        "seconds": args.seconds,
        "figures": compare(args.rounds, args.seconds),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
