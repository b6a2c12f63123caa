"""What holds for every test: nothing is left running, nothing leaves this machine, a skip fails CI, and the report names the seed.

Asyncio: tests are plain functions that call `asyncio.run(scenario())` (or a Runner with a loop of their own: virtual time, uvloop).
A plugin would add fixtures and loop scopes and take this choice away; `asyncio.run` cancels leftovers silently, so the guard below makes
a task that is still pending at its end a failure.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support.nats_server import NatsServer
from tests.support.real_model import model_fetch, smollm2
from tests.support.vllm_rig import vllm_rig

__all__ = ["model_fetch", "smollm2", "vllm_rig"]

IN_CI = bool(os.environ.get("CI"))  # noqa: TID251 - a property of the run, not a setting of the product
LOOPBACK = ("127.", "::1", "::ffff:127.", "localhost")
MARKER_OF_FIXTURE = {"nats_server": "nats", "own_nats_server": "nats", "vllm_rig": "vllm"}
LEAVE_S = 3.0
"""How long a child process may take to end after the test that stopped it."""
PR_SET_CHILD_SUBREAPER = 36

# A busy machine is no reason to fail an example; the time of a whole test is bounded by pytest-timeout.
hypothesis.settings.register_profile(
    "headrace",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.load_profile("headrace")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what changes the size of a test."""
    parser.addoption(
        "--sim-hours", type=float, default=0.5, help="virtual time of tests/sim/test_day.py"
    )


class LeftoverError(AssertionError):
    """A test left something running, or reached for what it may not."""


# --- nothing leaves this machine: an audit hook sees every Python socket, whatever library opens it


def _refuse_outside(event: str, arguments: tuple[Any, ...]) -> None:
    if event in {"socket.connect", "socket.bind", "socket.sendto"}:
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else "localhost"
    elif event == "socket.getaddrinfo":
        host = arguments[0] or "localhost"
    else:
        return
    name = host.decode() if isinstance(host, bytes) else str(host)
    if not name.startswith(LOOPBACK):
        raise LeftoverError(f"{event}: a test may only use loopback, not {name!r}")


# --- nothing is left running


def _children() -> dict[int, str]:
    """Direct children of this process that still run, with their command lines."""
    found = {}
    for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        with suppress(OSError):
            folder = Path(f"/proc/{pid}")
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            # Within an exec a process has no command line, as a zombie has none: its state tells them apart.
            name, _, after_name = (folder / "stat").read_text().rpartition(")")
            if (
                after_name.split()[0] not in "ZX"
                and "multiprocessing.resource_tracker" not in command
            ):
                found[int(pid)] = command or name
    return found


def _leftover_children(before: dict[int, str]) -> dict[int, str]:
    """Children that are new since `before` and do not end by themselves within `LEAVE_S`."""
    deadline_s = time.monotonic() + LEAVE_S
    while True:
        left = {pid: command for pid, command in _children().items() if pid not in before}
        if not left or time.monotonic() > deadline_s:
            return left
        time.sleep(0.02)


class TaskWatch:
    """Notes the tasks that are pending when a loop's run ends: `asyncio.run` would cancel them without a word."""

    def __init__(self) -> None:
        self.leftovers: list[str] = []
        self._cancel_all = asyncio.runners._cancel_all_tasks  # type: ignore[attr-defined]

    def __call__(self, loop: asyncio.AbstractEventLoop) -> None:
        # One more turn of the loop for those that were cancelled or closed in the very last step.
        for _ in range(3):
            if asyncio.all_tasks(loop):
                loop.run_until_complete(asyncio.sleep(0))
        self.leftovers += [repr(task) for task in asyncio.all_tasks(loop)]
        self._cancel_all(loop)


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a child process or a pending task behind; the processes are ended, so that the next test is not harmed."""
    watch = request.config.stash[TASK_WATCH]
    watch.leftovers.clear()
    before = _children()
    yield
    left = _leftover_children(before)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if left:
        raise LeftoverError(f"processes left running: {left}")
    if watch.leftovers:
        raise LeftoverError("tasks left pending: " + "; ".join(watch.leftovers))


TASK_WATCH = pytest.StashKey[TaskWatch]()


# --- the run as a whole


def pytest_configure(config: pytest.Config) -> None:
    """Set the guards up before anything is collected."""
    sys.addaudithook(_refuse_outside)
    # Orphans of a test's processes become our children, and so are found by `_children`.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    watch = TaskWatch()
    config.stash[TASK_WATCH] = watch
    asyncio.runners._cancel_all_tasks = watch  # type: ignore[attr-defined]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests the marker of the real part they use, so that none is forgotten."""
    for item in items:
        for fixture in set(getattr(item, "fixturenames", ())) & MARKER_OF_FIXTURE.keys():
            item.add_marker(MARKER_OF_FIXTURE[fixture])


def _fail_skip(report: pytest.CollectReport | pytest.TestReport) -> None:
    """In CI nothing real may be missing: a skip is a failure with the skip's own reason."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which fails CI: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """See `_fail_skip`."""
    report = yield
    _fail_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    """See `_fail_skip`."""
    report = yield
    _fail_skip(report)
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Name the seed at the end of every report: `-q` hides the header that has it too."""
    seed = config.getoption("randomly_seed", None)
    terminalreporter.write_line(f"seed: {seed} (the same order again: --randomly-seed={seed})")


# --- real parts that several tests share


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """The nats-server of this test run. Shared: tests use names of their own, and none stops or pauses it."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server of one test alone, running; the test may stop, kill and pause it."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.kill()
