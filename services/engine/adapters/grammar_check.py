"""Whether a grammar can be built in time, seen from an engine's loop: tried out in another process, and remembered.

The queue has a bound; each build has its deadlines, which the kernel keeps. Where the builder is gone no grammar is taken any more.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import OrderedDict
from hashlib import sha256
from typing import NoReturn

import msgspec
from typing_extensions import override

from services.engine.adapters.core_fork import CORE_FORK
from services.engine.adapters.grammar_builder import Builder, LoadCompile
from services.engine.adapters.grammar_frames import Bounds, Build, Built, Load, Outcome
from services.engine.adapters.render_frames import FrameReader, frame
from services.engine.ports import EngineFailedError, RefusedError
from shared import logs
from shared.messages import RefuseReason

RETRY_S = 5.0
MAX_WAITING = 16
"""Builds that may be under way or wait for their turn; more are refused as overload."""
KEPT = 4096
"""Verdicts that are remembered, about 200 bytes each."""

_log = logs.get("grammar")


class GrammarCheck(asyncio.Protocol):
    """Tries grammars out before an engine core builds them."""

    def __init__(self, load: LoadCompile, bounds: Bounds, *, kept: int = KEPT) -> None:
        self._load = load
        self._bounds = bounds
        self._kept = kept
        self._verdicts: OrderedDict[bytes, asyncio.Future[Built | None]] = OrderedDict()
        """By kind and text of a grammar; none: the builder was lost. Pending ones are never dropped."""
        self._waiting: dict[int, bytes] = {}
        self._last_number = 0
        self._reader = FrameReader()
        self._decoder = msgspec.msgpack.Decoder(Built)
        self._pid: int | None = None
        self._socket: socket.socket | None = None
        self._transport: asyncio.Transport | None = None

    @override
    def __repr__(self) -> str:
        return f"<GrammarCheck {len(self._waiting)} builds, {len(self._verdicts)} verdicts>"

    def fork(self) -> None:
        """Start the builder: early, since a fork copies the locks of other threads. Raises `EngineFailedError`."""
        ours, theirs = socket.socketpair()
        try:
            with CORE_FORK.guarded():
                self._pid = os.fork()
                if self._pid == 0:
                    self._live(theirs)
        except OSError as error:
            ours.close()
            raise EngineFailedError(f"no process to try grammars out: {error}") from error
        finally:
            theirs.close()
        self._socket = ours

    async def connect(self, setup: bytes) -> None:
        """Tell the builder what it must know of the model; it gets ready when it is first asked."""
        self._loop = asyncio.get_running_loop()
        self._transport, _ = await self._loop.create_connection(lambda: self, sock=self._socket)
        self._transport.write(frame(Load(setup)))

    def begin(self, kind: str, spec: str) -> asyncio.Future[Built | None]:
        """Return what becomes of building a grammar, for `judge`; others wait for the same. Raises `RefusedError`."""
        key = sha256(f"{kind}\0{spec}".encode(errors="surrogatepass")).digest()
        known = self._verdicts.get(key)
        if known is not None:
            self._verdicts.move_to_end(key)
            return known
        if self._transport is None or self._transport.is_closing():
            raise _gone()
        if len(self._waiting) >= MAX_WAITING:
            raise _busy()
        self._last_number += 1
        self._transport.write(frame(Build(self._last_number, kind, spec)))
        self._waiting[self._last_number] = key
        verdict = self._verdicts[key] = self._loop.create_future()
        return verdict

    def judge(self, built: Built | None, *, param: str | None) -> None:
        """Return if the grammar could be built; `param` is the field that it comes from. Raises `RefusedError`."""
        if built is None:
            raise _gone()
        match built.outcome:
            case Outcome.BUILT:
                return
            case Outcome.INVALID:
                raise RefusedError(RefuseReason.INVALID, built.message, param=param)
            case Outcome.TOO_SLOW:
                raise _busy()
            case Outcome.TOO_COSTLY:
                bounds = self._bounds
                message = (
                    f"the grammar of this schema takes more than {bounds.cpu_s:g} s or {bounds.memory_bytes >> 20} MiB to build:"
                    " use fewer properties, lengths, formats and repeats in patterns"
                )
                raise RefusedError(RefuseReason.INVALID, message, param=param)

    async def stop(self) -> None:
        """End the builder and what it builds. A second call changes nothing."""
        if self._transport is not None:
            self._transport.abort()
        elif self._socket is not None:
            self._socket.close()
        pid, self._pid = self._pid, None
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(os.waitpid, pid, 0)

    def _live(self, stream: socket.socket) -> NoReturn:
        """Be the builder until the engine is gone."""
        code = 1
        try:
            # Connections of the engine would stay open with this process.
            keep = stream.fileno()
            os.closerange(3, keep)
            os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            Builder(stream, self._load, self._bounds).serve()
            code = 0
        except BaseException:  # noqa: BLE001 - nothing of the engine's own may run in this process, whatever happens
            _log.error("grammar_builder_failed", exc_info=True)
        finally:
            os._exit(code)

    @override
    def data_received(self, data: bytes) -> None:
        for body in self._reader.feed(data):
            built = self._decoder.decode(body)
            key = self._waiting.pop(built.number)
            self._verdicts[key].set_result(built)
            if built.outcome is Outcome.TOO_SLOW:
                # That is said of the machine, not of the grammar.
                del self._verdicts[key]
        while len(self._verdicts) > self._kept + len(self._waiting):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = next(key for key, verdict in self._verdicts.items() if verdict.done())
        del self._verdicts[oldest]

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._pid is not None:
            _log.error("grammar_builder_lost", builds=len(self._waiting))
        for key in self._waiting.values():
            self._verdicts.pop(key).set_result(None)
        self._waiting.clear()


def _busy() -> RefusedError:
    message = "the machine is busy building grammars; try again"
    return RefusedError(RefuseReason.OVERLOADED, message, retry_after_s=RETRY_S)


def _gone() -> RefusedError:
    return RefusedError(RefuseReason.NOT_READY, "this engine cannot try grammars out any more")
