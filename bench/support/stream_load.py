"""A load generator for streamed completions on one event loop: raw sockets, no HTTP library, so that it costs little beside what it loads.

Each connection sends one request, reads its stream to `[DONE]`, and sends the next. Tokens of the stamped form `T<16 digits> ` carry the
monotonic clock in nanoseconds at their making; their age on arrival is the added latency.
`python bench/support/stream_load.py PORT --connections 128 --seconds 5` prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time

import uvloop

STAMP = re.compile(rb"T(\d{16}) ")  # anywhere: a chunk may carry several tokens
DONE = b"data: [DONE]"
HEAD_END = b"\r\n\r\n"


def request(options: argparse.Namespace) -> bytes:
    """Return one request as bytes."""
    body = {
        "model": options.model,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "hello " * 16},
        ],
        "max_tokens": options.tokens,
        "temperature": 0.7,
        "stream": not options.plain,
        # A fake engine's answer would end by itself now and then; the paced backend does not look at it.
        "ignore_eos": True,
    }
    data = json.dumps(body).encode()
    return (
        f"POST {options.path} HTTP/1.1\r\nHost: 127.0.0.1:{options.port}\r\nUser-Agent: load\r\nAccept: */*\r\n"
        f"Authorization: Bearer {options.key}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    ).encode() + data


class Tally:
    """Counts while `measuring`."""

    def __init__(self) -> None:
        self.measuring = False
        self.tokens = self.requests = self.failed = 0
        self.ages_ns: list[int] = []
        self.first_ns: list[int] = []
        self.whole_ns: list[int] = []
        self.last_error = ""


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(
        self, data: bytes, tally: Tally, running: asyncio.Event, *, stream: bool, tokens: int
    ) -> None:
        self._request = data
        self._tally = tally
        self._running = running
        self._stream = stream
        self._wanted = tokens
        self._buffer = b""
        self._tokens = 0
        self._sent_ns = 0
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        if not self._running.is_set():
            self._transport.close()
            return
        self._buffer, self._tokens = b"", 0
        self._sent_ns = time.monotonic_ns()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        data = self._buffer + data
        if not self._stream:
            self._plain(data, now_ns)
            return
        cut = data.rfind(b"\n") + 1
        self._buffer = data[cut:]
        data = data[:cut]
        stamps = STAMP.findall(data)
        if stamps:
            tally = self._tally
            if tally.measuring:
                tally.tokens += len(stamps)
                tally.ages_ns += [now_ns - int(stamp) for stamp in stamps]
                if not self._tokens:
                    tally.first_ns.append(now_ns - self._sent_ns)
            self._tokens += len(stamps)
        if DONE in data:
            self._end(
                now_ns,
                ok=self._tokens == self._wanted,
                why=f"{self._tokens} tokens of {self._wanted}",
            )
        elif not self._tokens and b"HTTP/1.1 200" not in data and data.startswith(b"HTTP/1.1 "):
            self._end(now_ns, ok=False, why=data[:200].decode(errors="replace"))

    def _plain(self, data: bytes, now_ns: int) -> None:
        head, _, body = data.partition(HEAD_END)
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        if length and len(body) >= int(length[1]):
            self._end(now_ns, ok=b" 200 " in head[:15], why=body[:200].decode(errors="replace"))
        else:
            self._buffer = data

    def _end(self, now_ns: int, *, ok: bool, why: str) -> None:
        tally = self._tally
        if tally.measuring:
            tally.requests += ok
            tally.failed += not ok
            tally.whole_ns.append(now_ns - self._sent_ns)
        if not ok:
            tally.last_error = why
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._running.is_set():
            self._tally.failed += 1
            self._tally.last_error = f"connection lost: {exc}"


def percentile_ms(values_ns: list[int], share: float) -> float | None:
    """Return a nearest-rank percentile in milliseconds."""
    if not values_ns:
        return None
    ordered = sorted(values_ns)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6, 3)


async def load(options: argparse.Namespace) -> dict[str, object]:
    """Run the load: ramp and warm up, measure, stop; return the figures."""
    loop = asyncio.get_running_loop()
    tally, running = Tally(), asyncio.Event()
    running.set()
    data = request(options)
    for _ in range(options.connections):
        await loop.create_connection(
            lambda: Client(data, tally, running, stream=not options.plain, tokens=options.tokens),
            "127.0.0.1",
            options.port,
        )
        await asyncio.sleep(options.ramp / options.connections)
    await asyncio.sleep(options.warm)
    print("measure", flush=True)
    tally.measuring = True
    start_s, cpu_s = time.monotonic(), time.process_time()
    await asyncio.sleep(options.seconds)
    tally.measuring = False
    elapsed_s = time.monotonic() - start_s
    print("measured", flush=True)
    running.clear()
    return {
        "seconds": round(elapsed_s, 2),
        "tokens": tally.tokens,
        "tokens_per_s": round(tally.tokens / elapsed_s),
        "requests": tally.requests,
        "failed": tally.failed,
        "token_p50_ms": percentile_ms(tally.ages_ns, 0.50),
        "token_p99_ms": percentile_ms(tally.ages_ns, 0.99),
        "first_p50_ms": percentile_ms(tally.first_ns, 0.50),
        "whole_p50_ms": percentile_ms(tally.whole_ns, 0.50),
        "load_cpu": round((time.process_time() - cpu_s) / elapsed_s, 2),
        "last_error": tally.last_error,
    }


def main() -> None:
    """Parse the options and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--path", default="/v1/chat/completions")
    parser.add_argument("--model", default="m")
    parser.add_argument("--key", default="none")
    parser.add_argument("--connections", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm", type=float, default=1.0)
    parser.add_argument(
        "--ramp",
        type=float,
        default=0.64,
        help="spread the starts, or all streams end in the same step",
    )
    parser.add_argument("--plain", action="store_true", help="not streamed")
    print(json.dumps(uvloop.run(load(parser.parse_args()))))


if __name__ == "__main__":
    main()
