"""The zygote with a light payload: children's lives, their surroundings, and what happens when somebody dies. Real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.zygote import Lines
from shared import zygote
from shared.zygote import Exited, Ready, Refused, Signal, Spawn, Spawned, ZygoteClient, ZygoteGone
from tests.support.nursery import (
    DEADLINE_S,
    ENV,
    ROOT,
    Nursery,
    ended,
    gone,
    is_running,
    with_zygote,
)

ARGV = [sys.executable, "-m", "tests.support.zygote_payload"]


def with_light_zygote(folder: Path, scenario: Callable[[Nursery], Awaitable[None]]) -> None:
    with_zygote(folder, ARGV, scenario)


def test_children_end_with_their_codes_and_their_logs_tell_why(tmp_path):
    ends = {"exit 0": 0, "exit 7": 7, "raise": 1, "sys-exit": 1, "end-with-signal": -signal.SIGSEGV}

    async def scenario(nursery: Nursery) -> None:
        for what, code in ends.items():
            child = await nursery.spawn(*what.split())

            assert code == await ended(child)
            assert code == await child.wait()
        assert "RuntimeError: on purpose" in nursery.log.read_text()

    with_light_zygote(tmp_path, scenario)


def test_a_child_has_its_own_environment_session_name_and_files(tmp_path):
    async def scenario(nursery: Nursery) -> None:
        sleeper = await nursery.spawn("sleep")
        await ended(await nursery.spawn("exit", "0", GIVEN="another's"))
        await ended(await nursery.spawn("tell", "GIVEN", "PYTHONPATH", OTHER="this"))
        await ended(await nursery.spawn("tell", "GIVEN", GIVEN="this"))
        said = nursery.log.read_text().splitlines()

        # Standard streams and the listing itself: nothing of the zygote's.
        common = ["session=True", "name=headrace-engine", "open=[0, 1, 2, 3]"]
        assert ["GIVEN=None", f"PYTHONPATH={ROOT}", *common, "GIVEN=this", *common] == said
        sleeper.signal(signal.SIGKILL)

    with_light_zygote(tmp_path, scenario)


def test_children_run_side_by_side_and_are_signalled_one_by_one(tmp_path):
    async def scenario(nursery: Nursery) -> None:
        first, second = await nursery.spawn("sleep"), await nursery.spawn("sleep")
        first.signal(signal.SIGTERM)

        assert -signal.SIGTERM == await ended(first)
        assert is_running(second.pid)
        first.signal(signal.SIGKILL)  # does nothing any more
        second.signal(signal.SIGKILL)
        assert -signal.SIGKILL == await ended(second)

    with_light_zygote(tmp_path, scenario)


def test_what_a_killed_child_had_started_ends_with_it(tmp_path):
    async def scenario(nursery: Nursery) -> None:
        child = await nursery.spawn("sleep-with-child")
        grandchild = int(await nursery.said("child"))
        child.signal(signal.SIGKILL)
        await ended(child)

        await gone(grandchild)

    with_light_zygote(tmp_path, scenario)


def test_a_log_that_cannot_be_opened_fails_this_child_only(tmp_path):
    async def scenario(nursery: Nursery) -> None:
        with pytest.raises(OSError, match="no/such"):
            await nursery.client.spawn(["exit", "0"], env={}, log=tmp_path / "no" / "such")

        assert 0 == await ended(await nursery.spawn("exit", "0"))

    with_light_zygote(tmp_path, scenario)


def test_stopping_the_zygote_ends_its_children(tmp_path):
    async def scenario(nursery: Nursery) -> None:
        child = await nursery.spawn("sleep")
        await nursery.client.stop()

        assert -signal.SIGKILL == await ended(child)
        await gone(child.pid)

    with_light_zygote(tmp_path, scenario)


def test_a_killed_zygote_ends_its_children_and_is_told(tmp_path):
    async def scenario(nursery: Nursery) -> None:
        child = await nursery.spawn("sleep")
        os.kill(nursery.client.pid, signal.SIGKILL)

        assert -signal.SIGKILL == await ended(child)
        await gone(child.pid)
        assert nursery.client.is_gone
        with pytest.raises(ZygoteGone):
            await nursery.spawn("exit", "0")

    with_light_zygote(tmp_path, scenario)


def test_a_zygote_that_hangs_is_killed_in_the_end(tmp_path):
    async def scenario(nursery: Nursery) -> None:
        os.kill(nursery.client.pid, signal.SIGSTOP)
        await nursery.client.stop(timeout_s=0.1)

        await gone(nursery.client.pid)

    with_light_zygote(tmp_path, scenario)


def test_a_zygote_that_cannot_start_says_so(tmp_path):
    async def main() -> None:
        argv = [sys.executable, "-c", "raise SystemExit(3)"]
        async with asyncio.TaskGroup() as group:
            client = await ZygoteClient.start(
                argv, env=ENV, log=tmp_path / "zygote.log", group=group
            )
            with pytest.raises(ZygoteGone, match="ended"):
                await client.ready(DEADLINE_S)
            await client.stop()

    asyncio.run(main())


def test_zygote_and_children_end_with_who_started_the_zygote(tmp_path):
    script = f"""
import asyncio, os
from pathlib import Path
from shared.zygote import ZygoteClient
async def main():
    async with asyncio.TaskGroup() as group:
        client = await ZygoteClient.start({ARGV!r}, env=os.environ, log=Path({str(tmp_path / "z")!r}), group=group)
        await client.ready(20.0)
        child = await client.spawn(["sleep"], env={{}}, log=Path({str(tmp_path / "c")!r}))
        print(client.pid, child.pid, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", script], env=ENV, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(pids) == 2
    owner.kill()
    owner.wait(DEADLINE_S)
    owner.stdout.close()

    async def all_gone() -> None:
        for pid in pids:
            await gone(pid)

    asyncio.run(all_gone())


# --- the socket itself


class Wire:
    """The raw other end of a zygote's socket."""

    def __init__(self, folder: Path) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(DEADLINE_S)
        self.log = folder / "zygote.log"
        with theirs, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*ARGV, f"--fd={theirs.fileno()}"],
                env=ENV,
                cwd=ROOT,
                stderr=log,
                pass_fds=[theirs.fileno()],
            )
        self._rest = b""

    def __enter__(self) -> Wire:
        assert isinstance(self.event(), Ready)
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        assert 0 == self.process.wait(DEADLINE_S)

    def event(self) -> zygote.Event:
        while b"\n" not in self._rest:
            self._rest += self.socket.recv(1 << 16)
        line, _, self._rest = self._rest.partition(b"\n")
        return zygote.EVENTS.decode(line)

    def proves_alive(self) -> None:
        """The zygote still forks."""
        self.socket.sendall(zygote.encode(Spawn(77, ["exit", "5"], {}, str(self.log))))
        spawned = self.event()
        assert isinstance(spawned, Spawned)
        assert Exited(spawned.pid, 5) == self.event()


GARBAGE = {
    "another protocol": b"GET / HTTP/1.1\r",
    "bytes": b"\xff\xfe\x00",
    "no tag": b"{}",
    "an event": b'{"type":"ready","preload_s":1,"threads":1}',
    "a wrong type": b'{"type":"spawn","ticket":1,"argv":"sh","env":{},"log":"x"}',
    "no signal": b'{"type":"signal","pid":1,"number":0}',
    "a huge signal": b'{"type":"signal","pid":1,"number":99999999999}',
    "deep nesting": b'{"type":"spawn","x":' + b"[" * 100_000 + b"}",
    "too long": b"x" * (zygote.MAX_LINE_BYTES + 100_000),
}


def test_garbage_is_refused_and_does_not_end_the_zygote(tmp_path):
    with Wire(tmp_path) as wire:
        for what, line in GARBAGE.items():
            wire.socket.sendall(line + b"\n")
            assert isinstance(wire.event(), Refused), what
            wire.proves_alive()


def test_a_path_that_is_none_fails_its_child_only(tmp_path):
    with Wire(tmp_path) as wire:
        wire.socket.sendall(zygote.encode(Spawn(1, [], {}, "a\0b")))

        assert wire.event() == zygote.NotSpawned(1, "embedded null byte")
        wire.proves_alive()


def test_a_process_that_is_no_child_is_never_signalled(tmp_path):
    with (
        Wire(tmp_path) as wire,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger,
    ):
        wire.socket.sendall(zygote.encode(Signal(stranger.pid, signal.SIGKILL)))
        wire.proves_alive()

        assert stranger.poll() is None
        stranger.kill()


@given(st.lists(st.binary(max_size=12)), st.lists(st.integers(1, 9), min_size=1))
def test_lines_come_out_as_they_went_in_however_they_were_cut(parts, sizes):
    expected = [part.replace(b"\n", b"") for part in parts]
    stream = b"".join(part + b"\n" for part in expected)
    lines = Lines(max_bytes=20)
    seen: list[bytes | None] = []
    cut = 0
    while stream:
        size = sizes[cut % len(sizes)]
        seen += lines.feed(stream[:size])
        stream, cut = stream[size:], cut + 1

    assert expected == seen


@given(st.integers(21, 200), st.integers(1, 50))
def test_an_endless_line_is_told_once_and_the_next_one_is_whole(length, size):
    stream = b"x" * length + b"\nnext\n"
    lines = Lines(max_bytes=20)
    seen: list[bytes | None] = []
    for at in range(0, len(stream), size):
        seen += lines.feed(stream[at : at + size])

    assert b"next" == seen[-1]
    assert len(seen) == 2
    assert seen[0] is None or seen[0] == b"x" * length
