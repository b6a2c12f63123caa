"""The render processes of an engine, seen from its loop: one for short prompts, one for long ones, so that a book never delays a question.

Each process does its jobs in order and minds their deadline itself. One that keeps silent for longer than that is killed, and so is
what it had taken; the next job starts a new process. Nothing here waits without a deadline or queues without a bound.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from contextlib import suppress
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

    def __init__(self) -> None:
        self._short = _Process()
        self._long = _Process()

    async def spawn(self) -> None:
        """Start the processes; their imports go on beside the caller."""
        await asyncio.gather(self._short.spawn(), self._long.spawn())

    async def load(self, setup: Setup) -> None:
        """Let them load what they need of the model; from then on they take jobs. Raises `EngineFailedError`."""
        await asyncio.gather(self._short.load(setup), self._long.load(setup))

    async def chat(self, messages_json: bytes, tools_json: bytes | None) -> list[int]:
        """Return the tokens of a conversation. Raises `RefusedError`."""
        process = self._process(len(messages_json) + len(tools_json or b""))
        job = ChatJob(process.next_number(), messages_json, tools_json)
        return await process.do(job, field="messages")

    async def text(self, text: str) -> list[int]:
        """Return the tokens of a text. Raises `RefusedError`."""
        process = self._process(len(text))
        return await process.do(TextJob(process.next_number(), text), field="prompt")

    async def stop(self) -> None:
        """End the processes."""
        await asyncio.gather(self._short.stop(), self._long.stop())

    def _process(self, size: int) -> _Process:
        return self._long if size > LONG_BYTES else self._short


class _Waiting(msgspec.Struct, frozen=True):
    """A job that a process has."""

    done: asyncio.Future[list[int]]
    field: str
    """Where the prompt came from."""

    def refuse(self, reason: RefuseReason, message: str, *, param: str | None = None) -> None:
        """End the wait, unless the caller has given up."""
        if not self.done.cancelled():
            self.done.set_exception(RefusedError(reason, message, param=param))


class _Process(asyncio.Protocol):
    """One render process; started again when a job finds it dead."""

    def __init__(self) -> None:
        self._setup: Setup | None = None
        self._starting = asyncio.Lock()
        self._popen: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._jobs: dict[int, _Waiting] = {}
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

    async def do(self, job: RenderJob, *, field: str) -> list[int]:
        """Return the tokens; `field` is where the prompt came from. Raises `RefusedError`."""
        transport = self._transport or await self._started_again()
        if len(self._jobs) >= MAX_JOBS or transport.get_write_buffer_size() >= MAX_BUFFER_BYTES:
            raise RefusedError(
                RefuseReason.OVERLOADED,
                f"{len(self._jobs)} prompts wait to be tokenized; try again",
            )
        waiting = self._jobs[job.number] = _Waiting(self._loop.create_future(), field)
        transport.write(frame(job))
        if self._watchdog is None:
            self._wind()
        return await waiting.done

    async def spawn(self) -> None:
        """Start the process, unless it was stopped meanwhile; `load` tries again where this fails."""
        async with self._starting:
            if not self._is_stopped:
                with suppress(EngineFailedError):
                    await self._spawn()

    async def load(self, setup: Setup) -> None:
        """Wait until the process has its tokenizer. Raises `EngineFailedError`."""
        self._setup = setup
        async with self._starting:
            await self._load(setup)

    async def stop(self) -> None:
        """End the process."""
        self._is_stopped = True
        async with self._starting:
            await self._end()

    async def _started_again(self) -> asyncio.Transport:
        if self._is_stopped or self._setup is None:
            raise RefusedError(RefuseReason.NOT_READY, "the engine is starting or stopping")
        try:
            async with self._starting:
                if self._transport is None:
                    await self._load(self._setup)
        except EngineFailedError as error:
            raise RefusedError(RefuseReason.NOT_READY, str(error)) from error
        if self._transport is None:
            raise RefusedError(RefuseReason.NOT_READY, "the process that renders prompts ended")
        return self._transport

    async def _spawn(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
        self._ready: asyncio.Future[None] = self._loop.create_future()
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                self._popen = await asyncio.to_thread(_popen, theirs)
            self._transport, _ = await self._loop.create_connection(lambda: self, sock=ours)
        except OSError as error:
            raise EngineFailedError(f"no process to render prompts: {error}") from error

    async def _load(self, setup: Setup) -> None:
        if self._transport is None:
            await self._end()
            await self._spawn()
        assert self._transport is not None
        try:
            async with asyncio.timeout(START_S):
                self._transport.write(frame(setup))
                await self._ready
        except (TimeoutError, ConnectionError) as error:
            await self._end()
            raise EngineFailedError(
                f"the process that renders prompts did not start: {error!r}"
            ) from error

    async def _end(self) -> None:
        """End the process there is, if any, and reap it."""
        if self._transport is not None:
            self._transport.abort()
        popen, self._popen, self._transport = self._popen, None, None
        if popen is not None:
            popen.kill()
            await asyncio.to_thread(popen.wait)

    def _wind(self) -> None:
        assert self._setup is not None, "jobs come after `load`"
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
                done = self._jobs.pop(reply.number).done
                if not done.cancelled():
                    done.set_result(reply.token_ids)
            case NotRendered():
                waiting = self._jobs.pop(reply.number)
                waiting.refuse(RefuseReason.INVALID, reply.message, param=waiting.field)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if not self._ready.done():
            self._ready.set_exception(ConnectionError("it ended at once"))
            # Nobody may be waiting, which is no reason for a complaint in the log.
            self._ready.exception()
        lost, self._jobs = list(self._jobs.values()), {}
        for waiting in lost:
            waiting.refuse(
                RefuseReason.OVERLOADED, "the process that renders prompts ended; try again"
            )


def _popen(stream: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", _MODULE], stdin=stream.fileno(), stdout=subprocess.DEVNULL, cwd=_ROOT
    )
