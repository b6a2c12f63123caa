"""The engines' zygote: imports vLLM once, then forks engine processes on request, each in a fraction of a second.

    python -m services.engine.zygote --fd N --preload vllm|none

`--fd` is one end of a Unix socket pair, `shared.zygote` the other end. One line is one JSON message; a line that is none is refused.

A fork copies memory, not threads. Hence the one rule of this process: it has one thread, computes nothing (no tensor operation, which
would start OpenMP's threads) and opens no device.
When the socket closes this process ends, and the kernel ends the children with it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from shared import runtime, zygote
from shared.zygote import Exited, Failed, NotSpawned, Ready, Refused, Signal, Spawn, Spawned

READ_BYTES = 1 << 16
SEND_TIMEOUT_S = 10.0
"""A client that has not read its events for so long hangs: then this process ends, as if the client had gone."""
PR_SET_NAME = 15
CHILD_NAME = b"headrace-engine"
"""What `ps` and `top` call a child: its command line is the zygote's own. The kernel keeps 15 bytes."""

Payload = Callable[[list[str]], int]
"""What a child runs: arguments in, exit code out."""


class Lines:
    """Cuts a byte stream into lines of bounded length."""

    def __init__(self, max_bytes: int = zygote.MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest = b""
        self._is_skipping = False

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """Give the lines that are complete now; None stands for one that was too long."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not self._is_skipping:
                yield line
            self._is_skipping = False
        if len(self._rest) > self._max_bytes:
            self._rest = b""
            if not self._is_skipping:
                self._is_skipping = True
                yield None


class Zygote:
    """Serves one client on one socket."""

    def __init__(self, control: socket.socket, payload: Payload) -> None:
        self._control = control
        self._payload = payload
        self._lines = Lines()
        self._pidfds: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        control.settimeout(SEND_TIMEOUT_S)

    def serve(self, preload_s: float) -> None:
        """Return when the client has closed the socket or hangs."""
        threads = len(list(Path("/proc/self/task").iterdir()))
        if threads > 1:
            sys.stderr.write(f"zygote: imports started {threads - 1} threads; children may hang\n")
        try:
            self._send(Ready(preload_s=preload_s, threads=threads))
            while self._turn():
                pass
        except OSError as error:
            sys.stderr.write(f"zygote: lost its client: {error}\n")

    def _turn(self) -> bool:
        for key, _ in self._selector.select():
            if key.fileobj is not self._control:
                self._bury(key.data)
            elif not self._read():
                return False
        return True

    def _read(self) -> bool:
        data = self._control.recv(READ_BYTES)
        for line in self._lines.feed(data):
            if line is None:
                self._send(Refused(f"a line over {zygote.MAX_LINE_BYTES} bytes"))
            else:
                self._take(line)
        return bool(data)

    def _take(self, line: bytes) -> None:
        try:
            request = zygote.REQUESTS.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            self._send(Refused(str(error)))
            return
        match request:
            case Spawn():
                self._send(self._spawn(request))
            case Signal(pid, number):
                self._signal(pid, number)

    def _send(self, event: zygote.Event) -> None:
        self._control.sendall(zygote.encode(event))

    def _signal(self, pid: int, number: int) -> None:
        pidfd = self._pidfds.get(pid)
        try:
            if pidfd is not None:  # else it ended; its number may be somebody else's by now
                signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            pass
        except OSError as error:
            self._send(Refused(f"signal {number}: {error}"))

    def _spawn(self, wish: Spawn) -> Spawned | NotSpawned:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        try:
            log = os.open(wish.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            pid = os.fork()
        except (OSError, ValueError) as error:  # ValueError: what is no path
            return NotSpawned(wish.ticket, str(error))
        if pid == 0:
            os._exit(self._live(wish, parent, log))
        os.close(log)
        pidfd = self._pidfds[pid] = os.pidfd_open(pid)
        self._selector.register(pidfd, selectors.EVENT_READ, pid)
        return Spawned(wish.ticket, pid)

    def _bury(self, pid: int) -> None:
        """Reap a child that ended, and end what it left in its process group."""
        pidfd = self._pidfds.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        # Before reaping, so that neither its process id nor its group can be a stranger's.
        with suppress(
            ProcessLookupError, PermissionError
        ):  # it may have ended before it had a group
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        self._send(Exited(pid, os.waitstatus_to_exitcode(status)))

    def _live(self, wish: Spawn, parent: int, log: int) -> int:
        """Be the child: return its exit code. No exception may leave, or two processes would go on with the zygote's work."""
        try:
            os.setsid()
            runtime.die_with_parent(parent, signal.SIGKILL)
            self._leave_zygote(log)
            # The one place besides the settings that touches the environment: a forked process has no other way to get its own.
            os.environ.update(wish.env)  # noqa: TID251
            return self._payload(wish.argv)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 - the top of a process
            traceback.print_exc()
            return runtime.EXIT_FAILED
        finally:
            sys.stdout.flush()
            sys.stderr.flush()

    def _leave_zygote(self, log: int) -> None:
        """Let go of what is the zygote's: its socket, its hold on the other children, its output, its name."""
        self._control.close()
        self._selector.close()
        for pidfd in self._pidfds.values():
            os.close(pidfd)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        ctypes.CDLL(None).prctl(PR_SET_NAME, CHILD_NAME, 0, 0, 0)


def preload(what: Literal["vllm", "none"]) -> None:
    """Import what children will need."""
    if what == "vllm":
        from services.engine.adapters import vllm_preload  # noqa: PLC0415 - takes ten seconds, and fails where vLLM is absent

        vllm_preload.preload()


def run(control: socket.socket, payload: Payload, what: Literal["vllm", "none"]) -> int:
    """Preload and serve; return the exit code."""
    start_s = time.monotonic()
    try:
        preload(what)
    except Exception as error:  # noqa: BLE001 - whatever an import raises, the client is told
        traceback.print_exc()
        control.sendall(zygote.encode(Failed(f"{type(error).__name__}: {error}")))
        return runtime.EXIT_FAILED
    Zygote(control, payload).serve(time.monotonic() - start_s)
    return 0


def main() -> int:
    """Be the engines' zygote."""
    runtime.die_with_parent(os.getppid(), signal.SIGKILL)
    from services.engine.__main__ import main as engine_main  # noqa: PLC0415 - imports are this process's work, not its clients'

    parser = argparse.ArgumentParser(prog=Path(__file__).stem, description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--preload", choices=("vllm", "none"), default="none")
    options = parser.parse_args()
    return run(socket.socket(fileno=options.fd), engine_main, options.preload)


if __name__ == "__main__":
    # Nothing is left to do, and taking apart what was imported takes seconds.
    os._exit(main())
