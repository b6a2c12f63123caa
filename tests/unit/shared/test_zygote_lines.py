"""The zygote's protocol under bytes that are none of it: the client gives the zygote up and leaves nobody waiting."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import zygote
from shared.zygote import Exited, Ready, Refused, Spawned, ZygoteClient, ZygoteGone
from tests.support.nursery import DEADLINE_S, ENV

SAY = "import socket, sys; socket.socket(fileno=int(sys.argv[-1][5:])).sendall(open(sys.argv[1], 'rb').read())"
READY = zygote.encode(Ready(0.1, 1))
NONE_OF_IT = {
    "garbage": b"\xff\xfe\0\n",
    "another protocol": b"HTTP/1.1 200 OK\r\n\r\n",
    "a request": b'{"type":"spawn","ticket":1,"argv":[],"env":{},"log":"x"}\n',
    "ready twice": READY * 2,
    "a stranger's end": READY + zygote.encode(Exited(1, 0)),
    "an end told twice": READY
    + zygote.encode(Spawned(1, 2**22 + 1))
    + 2 * zygote.encode(Exited(2**22 + 1, 0)),
    "a complaint": READY + zygote.encode(Refused("no")),
    "deep nesting": READY + b'{"type":"ready","x":' + b"[" * 100_000 + b"}\n",
    "an endless line": READY + b"x" * (zygote.MAX_LINE_BYTES + 100_000),
    "half a line": READY[:-5],
    "nothing": b"",
}


@pytest.mark.parametrize("what", NONE_OF_IT)
def test_a_zygote_that_says_what_it_must_not_is_given_up(tmp_path, what):
    (tmp_path / "says").write_bytes(NONE_OF_IT[what])

    async def scenario() -> None:
        argv = [sys.executable, "-S", "-c", SAY, str(tmp_path / "says")]
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            client = await ZygoteClient.start(argv, env=ENV, log=tmp_path / "log", group=group)
            with suppress(ZygoteGone):
                await client.ready(DEADLINE_S)
            while not client.is_gone:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            with pytest.raises(ZygoteGone):
                client.send(zygote.Signal(1, 1))
            await client.stop()

    asyncio.run(scenario())


@given(
    st.binary(max_size=80) | st.text(max_size=40).map(lambda text: b'{"type":"%b"}' % text.encode())
)
def test_any_line_is_a_message_or_a_known_fault(line):
    for decoder in (zygote.REQUESTS, zygote.EVENTS):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            assert b"\n" not in zygote.encode(decoder.decode(line))[:-1]
