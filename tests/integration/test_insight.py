"""`headrace trace`, `top`, `logs` and `blame` as processes, on a real NATS server with the rights that a platform gives the console."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.console.fleet.instance import Instance
from shared.clock import unix_time_s
from shared.history import History
from shared.messages import LedgerBatch
from shared.natsbus import NatsBus
from shared.settings import NatsSettings, Secret
from tests.support.nats_server import NatsServer, free_port
from tests.support.platform import clean_environment
from tests.support.requests_seen import SERVICE, batch, blocked, ledger

END_S = 60.0
NOW_US = unix_time_s() * 1_000_000
STALLED = ledger(
    90,
    parts={"prefill": 20, "decode": 80, "decode_wait": 2300},
    blocked_by=[blocked(3, 2300)],
    began_unix_us=NOW_US,
)


async def publish(url: str, password: str) -> None:
    settings = NatsSettings(url=url, user="gateway", password=Secret(password))
    async with asyncio.TaskGroup() as group:
        bus = await NatsBus.connect(settings, group=group, name="gateway")
        await (await History.open(bus)).ensure(LedgerBatch)
        bus.publish(batch(*(ledger(n, began_unix_us=NOW_US) for n in range(40)), STALLED))
        await bus.flush(timeout_s=5)
        await bus.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a platform whose bus runs and holds forty-one ledgers."""
    home = tmp_path_factory.mktemp("insight")
    instance = Instance(home / "platforms" / "default")
    instance.folder.mkdir(parents=True)
    port = free_port()
    passwords = instance.write_nats(port=port)
    config = (instance.folder / "nats.conf").read_text()
    server = NatsServer(home / "nats", port=port, config=config)
    server.start()
    try:
        asyncio.run(publish(server.url, passwords["gateway"].read_text()))
        yield home
    finally:
        server.stop()


def started(home: Path, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "services.console", *words],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(home),
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=END_S)
    return process.returncode, out, err


@pytest.mark.nats
def test_each_command_answers_from_what_the_bus_keeps(home):
    running = {
        name: started(home, *words)
        for name, words in {
            "trace": ("trace", STALLED.request[:-2]),
            "token": ("trace", STALLED.request, "--token", "1"),
            "top": ("top", "--once"),
            "logs": ("logs", SERVICE, "--slow", "--json"),
            "blame": ("blame", SERVICE),
            "unknown": ("blame", "nobody"),
        }.items()
    }
    answers = {name: ended(process) for name, process in running.items()}

    assert {"trace": 2, "token": 1, "top": 0, "logs": 0, "blame": 0, "unknown": 2} == {
        name: code for name, (code, _, _) in answers.items()
    }, answers
    assert "may mean" in answers["trace"][2]
    assert "is gone, and what it knew of its steps" in answers["token"][2]
    assert answers["top"][1].startswith("headrace top default  last ")
    assert STALLED.request == json.loads(answers["logs"][1])["request"]
    assert "% of the difference is decode_wait" in answers["blame"][1]
    assert f"known: {SERVICE}" in answers["unknown"][2]
    assert not [name for name, (_, _, err) in answers.items() if "Traceback" in err]


@pytest.mark.nats
def test_q_ends_the_live_view_and_gives_the_terminal_back(home):
    master, slave = pty.openpty()
    try:
        before = termios.tcgetattr(slave)
        process = started(home, "top", "--interval", "0.2", stdin=slave)
        assert process.stdout is not None
        while process.poll() is None and "GATEWAY" not in process.stdout.readline():
            pass
        os.write(master, b"xq")
        code, _, err = ended(process)

        assert (0, "") == (code, err)
        assert before == termios.tcgetattr(slave)
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.parametrize("words", ["status", f"blame {SERVICE}"])
def test_a_bus_that_is_away_is_an_error_with_words(tmp_path, words):
    instance = Instance(tmp_path / "platforms" / "default")
    instance.folder.mkdir(parents=True)
    instance.write_nats(port=free_port())

    code, out, err = ended(started(tmp_path, *words.split()))

    assert (2, "") == (code, out)
    assert "no NATS server at nats://127.0.0.1:" in err
    assert "Traceback" not in err
