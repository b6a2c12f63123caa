"""The render processes of an engine, seen from its loop: one for short prompts, one for long ones, so that a book never delays a question.

Each process does its jobs in order and minds their deadline itself. One that keeps silent for longer than that is killed, and so is
what it had taken; the next job starts a new process. Nothing here waits without a deadline or queues without a bound.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
from typing_extensions import override

from services.engine.adapters.render_frames import (
    ChatJob,
    FrameReader,
    NotRendered,
    Ready,
    Rendered,
    RenderJob,
    Reply,
    Setup,
    TextJob,
    frame,
)
from services.engine.ports import EngineFailedError, RefusedError
from shared import logs
from shared.messages import RefuseReason

START_S = 30.0
"""Time that a process gets to load a tokenizer."""
GRACE_S = 1.0
"""Added to the deadline of a job before its process counts as hung."""
MAX_JOBS = 512
"""Jobs that one process may have before it; more are refused as overload."""
MAX_BUFFER_BYTES = 64 << 20
"""Bytes of jobs that one process has not read yet; beyond, more are refused as overload."""
LONG_BYTES = 32 << 10
"""A prompt above this size is a long one."""
_MODULE = "services.engine.adapters.render_worker"
_ROOT = Path(__file__).parents[3]

_log = logs.get("render")


class RenderPool:
    """Turns prompts into tokens."""

    def __init__(self, setup: Setup) -> None:
        self._short = _Process(setup)
        self._long = _Process(setup)

    async def start(self) -> None:
        """Start the processes. Raises `EngineFailedError`."""
        await asyncio.gather(self._short.start(), self._long.start())

    async def chat(self, messages_json: bytes, tools_json: bytes | None) -> list[int]:
        """Return the tokens of a conversation. Raises `RefusedError`."""
        process = self._process(len(messages_json) + len(tools_json or b""))
        return await process.do(ChatJob(process.next_number(), messages_json, tools_json))

    async def text(self, text: str) -> list[int]:
        """Return the tokens of a text. Raises `RefusedError`."""
        process = self._process(len(text))
        return await process.do(TextJob(process.next_number(), text))

    async def stop(self) -> None:
        """End the processes."""
        await asyncio.gather(self._short.stop(), self._long.stop())

    def _process(self, size: int) -> _Process:
        return self._long if size > LONG_BYTES else self._short


class _Process(asyncio.Protocol):
    """One render process; started again when a job finds it dead."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._starting = asyncio.Lock()
        self._popen: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._jobs: dict[int, asyncio.Future[list[int]]] = {}
        self._watchdog: asyncio.TimerHandle | None = None
        self._last_number = 0
        self._is_stopped = False

    @override
    def __repr__(self) -> str:
        return f"<render process {self._popen and self._popen.pid} jobs={len(self._jobs)}>"

    def next_number(self) -> int:
        """Return the number of the next job."""
        self._last_number += 1
        return self._last_number

    async def do(self, job: RenderJob) -> list[int]:
        """Return the tokens. Raises `RefusedError`."""
        transport = self._transport or await self._started_again()
        if len(self._jobs) >= MAX_JOBS or transport.get_write_buffer_size() >= MAX_BUFFER_BYTES:
            raise RefusedError(
                RefuseReason.OVERLOADED,
                f"{len(self._jobs)} prompts wait to be tokenized; try again",
            )
        done: asyncio.Future[list[int]] = self._loop.create_future()
        self._jobs[job.number] = done
        transport.write(frame(job))
        if self._watchdog is None:
            self._wind()
        return await done

    async def start(self) -> None:
        """Start the process and wait until it has its tokenizer. Raises `EngineFailedError`."""
        async with self._starting:
            if self._transport is None:
                await self._start()

    async def stop(self) -> None:
        """End the process."""
        self._is_stopped = True
        async with self._starting:
            await self._end()

    async def _started_again(self) -> asyncio.Transport:
        if self._is_stopped:
            raise RefusedError(RefuseReason.NOT_READY, "the engine is stopping")
        try:
            await self.start()
        except EngineFailedError as error:
            raise RefusedError(RefuseReason.NOT_READY, str(error)) from error
        if self._transport is None:
            raise RefusedError(RefuseReason.NOT_READY, "the process that renders prompts ended")
        return self._transport

    async def _start(self) -> None:
        await self._end()
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._reader = FrameReader()
        self._decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
        ours, theirs = socket.socketpair()
        with theirs:
            self._popen = await asyncio.to_thread(_spawn, theirs)
        try:
            async with asyncio.timeout(START_S):
                transport, _ = await self._loop.create_connection(lambda: self, sock=ours)
                transport.write(frame(self._setup))
                await self._ready
        except (TimeoutError, ConnectionError) as error:
            await self._end()
            raise EngineFailedError(
                f"the process that renders prompts did not start: {error!r}"
            ) from error
        self._transport = transport

    async def _end(self) -> None:
        """End the process there is, if any, and reap it."""
        if self._transport is not None:
            self._transport.abort()
        popen, self._popen, self._transport = self._popen, None, None
        if popen is not None:
            popen.kill()
            await asyncio.to_thread(popen.wait)

    def _wind(self) -> None:
        self._watchdog = self._loop.call_later(self._setup.timeout_s + GRACE_S, self._bite)

    def _bite(self) -> None:
        _log.warning("render_process_hung", jobs=len(self._jobs))
        assert self._popen is not None
        self._popen.kill()

    @override
    def data_received(self, data: bytes) -> None:
        for body in self._reader.feed(data):
            self._take(self._decoder.decode(body))
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if self._jobs:
            self._wind()

    def _take(self, reply: Reply) -> None:
        match reply:
            case Ready():
                self._ready.set_result(None)
            case Rendered():
                done = self._jobs.pop(reply.number)
                if not done.cancelled():
                    done.set_result(reply.token_ids)
            case NotRendered():
                done = self._jobs.pop(reply.number)
                if not done.cancelled():
                    done.set_exception(RefusedError(RefuseReason.INVALID, reply.message))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if not self._ready.done():
            self._ready.set_exception(ConnectionError("it ended at once"))
        lost, self._jobs = list(self._jobs.values()), {}
        for done in lost:
            if not done.cancelled():
                done.set_exception(
                    RefusedError(
                        RefuseReason.OVERLOADED, "the process that renders prompts ended; try again"
                    )
                )


def _spawn(stream: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", _MODULE], stdin=stream.fileno(), stdout=subprocess.DEVNULL, cwd=_ROOT
    )
