"""A fake OpenAI-compatible HTTP server with paced tokens, for measuring proxies: one stamped token per stream and step, from one timer.

`python bench/support/paced_backend.py PORT --step 0.01` . Knows just enough HTTP for well-behaved proxies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
PREFIX = (
    b'data: {"id":"chatcmpl-0000000000000000","object":"chat.completion.chunk","created":1760000000,"model":"m",'
    b'"choices":[{"index":0,"delta":'
)
TOKEN = PREFIX + b'{"content":"T%016d "},"logprobs":null,"finish_reason":null}]}\n\n'
LAST = PREFIX + b'{},"logprobs":null,"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
MODELS = json.dumps(
    {
        "object": "list",
        "data": [
            {
                "id": "m",
                "object": "model",
                "created": 1760000000,
                "owned_by": "bench",
                "max_model_len": 4096,
            }
        ],
    }
)
PLAIN = json.dumps(
    {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 1760000000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello."},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22},
    }
)


def chunk(data: bytes) -> bytes:
    """Frame a piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Pacer:
    """Gives each live stream one token a step."""

    def __init__(self, step_s: float) -> None:
        self.live: dict[Connection, int] = {}
        self._step_s = step_s
        self._loop = asyncio.get_running_loop()
        self._next_s = self._loop.time()
        self._step()

    def _step(self) -> None:
        self._next_s = max(self._next_s + self._step_s, self._loop.time())
        self._loop.call_at(self._next_s, self._step)
        for connection, left in list(self.live.items()):
            connection.write(chunk(TOKEN % time.monotonic_ns()))
            if left > 1:
                self.live[connection] = left - 1
            else:
                del self.live[connection]
                connection.write(chunk(LAST) + b"0\r\n\r\n")


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.write = transport.write

    def connection_lost(self, exc: Exception | None) -> None:
        self._pacer.live.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (whole := self._split()) is not None:
            head, body = whole
            if not head.startswith(b"POST"):
                self._answer(MODELS.encode())
            elif b'"stream": true' in body or b'"stream":true' in body:
                wanted = re.search(rb'"max_tokens": *(\d+)', body)
                self.write(HEAD)
                self._pacer.live[self] = int(wanted[1]) if wanted else 64
            else:
                self._answer(PLAIN.encode())

    def _answer(self, body: bytes) -> None:
        self.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )

    def _split(self) -> tuple[bytes, bytes] | None:
        """Take one whole request off the buffer."""
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return None
        if b"chunked" in head.lower():
            body, end, after = rest.partition(b"\r\n0\r\n\r\n")
            if not end:
                return None
            self._buffer = after
            return head, body
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        size = int(length[1]) if length else 0
        if len(rest) < size:
            return None
        self._buffer = rest[size:]
        return head, rest[:size]


async def serve(port: int, step_s: float) -> None:
    """Serve until killed."""
    pacer = Pacer(step_s)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(pacer), "127.0.0.1", port, backlog=2048
    )
    await server.serve_forever()


def main() -> None:
    """Parse the options and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--step", type=float, default=0.01)
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.step))


if __name__ == "__main__":
    main()
