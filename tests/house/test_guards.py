"""The guards of conftest hold: each is broken on purpose, all in one pytest run of its own, as its start costs the most."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SAMPLES = """
import asyncio, socket, subprocess
import pytest

async def forgets_a_task():
    asyncio.get_running_loop().create_task(asyncio.sleep(99))

async def waits_for_its_task():
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0))

def test_pending_task():
    asyncio.run(forgets_a_task())

def test_child():
    with subprocess.Popen(["sleep", "99"]) as child:
        child.wait = lambda: None

def test_orphan():
    subprocess.run("sleep 99 & exit 0", shell=True)

def test_connection():
    with socket.socket() as outside:
        outside.connect(("192.0.2.1", 80))

def test_wildcard_listener():
    with socket.socket() as everywhere:
        everywhere.bind(("", 0))

def test_look_up():
    socket.getaddrinfo("example.org", 80)

@pytest.mark.skip(reason="no device")
def test_skipped():
    pass

def test_orderly():
    asyncio.run(waits_for_its_task())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
    subprocess.run(["true"], check=True)
"""
"""Tests that do what they may not, and one that does not."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest said about `SAMPLES` in CI."""
    folder = tmp_path_factory.mktemp("guards")
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_sample.py").write_text(SAMPLES)
    (folder / "test_absent.py").write_text(
        "import pytest\npytest.importorskip('no_such_module_here')\n"
    )
    options = [
        "-rA",
        "-c",
        ROOT / "pyproject.toml",
        "--rootdir",
        folder,
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
    ]
    environment = os.environ | {"CI": "true", "PYTHONPATH": str(ROOT)}  # noqa: TID251 - handed on to the run
    command = [sys.executable, "-m", "pytest", "--continue-on-collection-errors", *options, folder]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
        cwd=folder,
        env=environment,
    ).stdout


@pytest.mark.parametrize(
    ("line", "told"),
    [
        pytest.param(
            "ERROR test_sample.py::test_pending_task",
            "tasks left pending",
            id="a task nobody waits for",
        ),
        pytest.param(
            "ERROR test_sample.py::test_child", "processes left running", id="a child process"
        ),
        pytest.param(
            "ERROR test_sample.py::test_orphan", "processes left running", id="an orphaned process"
        ),
        pytest.param(
            "FAILED test_sample.py::test_connection", "not '192.0.2.1'", id="a connection"
        ),
        pytest.param(
            "FAILED test_sample.py::test_wildcard_listener",
            "socket.bind: a test may only",
            id="a wildcard listener",
        ),
        pytest.param("FAILED test_sample.py::test_look_up", "not 'example.org'", id="a look-up"),
        pytest.param(
            "ERROR test_sample.py::test_skipped", "skipped, which fails CI", id="a skip in CI"
        ),
        pytest.param(
            "ERROR test_absent.py", "no_such_module_here", id="a module that skips itself in CI"
        ),
        pytest.param("PASSED test_sample.py::test_orderly", " passed", id="an orderly test passes"),
    ],
)
def test_guard_of(report, line, told):
    assert line in report
    assert told in report


def test_seed_is_named(report):
    assert "seed: " in report
