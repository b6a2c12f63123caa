"""A zygote with a light payload instead of an engine: what a child does is its first argument."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from services.engine import zygote

SLEEP_S = 600.0


def say(name: str, value: object) -> None:
    """Write a line to the child's log."""
    sys.stdout.write(f"{name}={value}\n")
    sys.stdout.flush()


def payload(argv: list[str]) -> int:
    """Be the child."""
    match argv:
        case ["exit", code]:
            return int(code)
        case ["raise"]:
            raise RuntimeError("on purpose")
        case ["sys-exit"]:
            raise SystemExit("said why")
        case ["tell", *names]:
            for name in names:
                say(name, os.environ.get(name))  # noqa: TID251 - the child's own environment
            say("session", os.getsid(0) == os.getpid())
            say("name", Path("/proc/self/comm").read_text().strip())
            say("open", sorted(int(fd.name) for fd in Path("/proc/self/fd").iterdir()))
        case ["sleep"]:
            time.sleep(SLEEP_S)
        case ["sleep-with-child"]:
            child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({SLEEP_S})"])
            say("child", child.pid)
            time.sleep(SLEEP_S)
        case ["end-with-signal"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        case _:
            raise ValueError(argv)
    return 0


if __name__ == "__main__":
    assert sys.argv[1].startswith("--fd=")
    sys.exit(zygote.run(socket.socket(fileno=int(sys.argv[1][5:])), payload, "none"))
