"""`headrace blackbox` finds the box that is meant and shows what matters."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from services.console.blackbox import find, text
from shared.blackbox.layout import Box, Identity, Note, ProcessMemory, Request, Second, Step, Table
from shared.blackbox.report import GIB, Ending, Report, report
from shared.errors import UserError
from shared.ids import EngineId, RequestId, ServiceName


def said(engine: str, name: str) -> Report:
    requests = [Request(request=RequestId(f"r{n}"), stage="decode", tokens=n) for n in range(30)]
    box = Box(
        identity=Identity(
            engine=EngineId(engine), service=ServiceName("m"), name=name, began_unix_s=1e9
        ),
        steps=[
            Step(number=n, unix_s=1e9 + n / 10, us=9_500, decodes=8, mode="M/graph")
            for n in range(1, 41)
        ],
        seconds=[
            Second(
                unix_s=1e9 + n,
                state="ready",
                processes=[ProcessMemory(1, "front", GIB)],
                group_bytes=GIB,
                group_limit_bytes=2 * GIB,
            )
            for n in range(5)
        ],
        table=Table(unix_s=1e9 + 4, requests=requests, left_out=5),
        notes=[Note(unix_s=1e9, what="ready")],
    )
    told = report(box, Ending(how="signal SIGKILL", unix_s=1e9 + 4.5, log="/l/engine-0.log"))
    assert told is not None
    return told


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    for age, (engine, name) in enumerate(
        [("e3", "engine-0"), ("e2", "engine-1"), ("e1", "engine-0")]
    ):
        path = tmp_path / f"{engine}.json"
        path.write_bytes(msgspec.json.encode(said(engine, name)))
        os.utime(path, (100 - age, 100 - age))
    return tmp_path


@pytest.mark.parametrize(
    ("wanted", "engine"), [("latest", "e3"), ("e1", "e1"), ("engine-1", "e2"), ("engine-0", "e3")]
)
def test_the_newest_that_is_meant_is_found(shelf, wanted, engine):
    assert engine == find(shelf, wanted).engine


def test_one_that_is_not_there_is_told_with_those_that_are(shelf):
    with pytest.raises(UserError, match="engine-7") as caught:
        find(shelf, "engine-7")
    assert "engine-1 (e2)" in caught.value.hint


def test_an_empty_shelf_says_so(tmp_path):
    with pytest.raises(UserError, match="no black box"):
        find(tmp_path, "latest")


def test_the_text_has_cause_steps_memory_and_requests():
    lines = text(said("e1", "engine-0")).splitlines()

    assert "engine-0: signal SIGKILL" == lines[0]
    assert "log      /l/engine-0.log" in lines
    assert any(
        line.split() == ["-0.500", "40", "9.50", "8", "0", "0", "0", "0", "0", "M/graph"]
        for line in lines
    )
    assert any("1.00 of 2.0" in line and "front 1.00" in line for line in lines)
    assert "35 requests under way 0.50 s before its end:" in lines
    assert "and 15 more" == lines[-1]
