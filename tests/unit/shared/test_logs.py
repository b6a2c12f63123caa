"""Logs: one JSON object a line on stderr, libraries' records alike, no secret and no local variable in them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def logged(body: str, *, format_: str = "json", level: str = "info") -> list[str]:
    """Return the lines that a process writes to stderr; a process since the configuration is a process's."""
    script = f"""
import logging
from shared import logs
from shared.settings import Secret
logs.configure(logs.LogSettings(level={level!r}, format={format_!r}), service="gateway")
log = logs.get("door")
{body}
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert "" == done.stdout
    return done.stderr.splitlines()


def test_a_record_is_a_json_object_with_its_origin():
    (line,) = logged('log.bind(request="r1").warning("request_refused", status=429)')

    record = json.loads(line)
    assert record.pop("timestamp").endswith("Z")
    assert {
        "event": "request_refused",
        "level": "warning",
        "service": "gateway",
        "part": "door",
        "request": "r1",
        "status": 429,
    } == record


def test_a_secret_is_not_shown_wherever_it_stands():
    lines = logged('log.info("up", key=Secret("hush"), all=[{"deep": Secret("hush")}])')

    assert "***" in lines[0]
    assert "hush" not in "".join(lines)


def test_libraries_records_come_out_the_same_way():
    (line,) = logged('logging.getLogger("nats.aio").error("lost %s", "it")')

    record = json.loads(line)
    assert ("lost it", "error", "nats.aio", "gateway") == tuple(
        record[key] for key in ("event", "level", "logger", "service")
    )


def test_less_severe_records_are_left_out():
    assert 1 == len(logged('log.info("a"); log.error("b")', level="error"))
    assert 2 == len(logged('log.debug("a"); log.error("b")', level="debug"))


FAIL = """
def fail():
    prompt = "my secret prompt"
    raise ValueError("broken")
try:
    fail()
except ValueError:
    log.exception("failed")
"""


def test_a_traceback_shows_no_local_variables():
    for format_ in ("json", "console"):
        text = "\n".join(logged(FAIL, format_=format_))

        assert "ValueError: broken" in text
        assert "my secret prompt" not in text.replace('prompt = "my secret prompt"', "")


def test_console_lines_are_for_people():
    (line,) = logged('log.info("gateway_ready", port=8000)', format_="console")

    assert "gateway_ready" in line
    assert "port=8000" in line
    assert not line.startswith("{")
