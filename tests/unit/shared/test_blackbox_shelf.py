"""Boxes of the dead are kept once, those of the living are left alone, and the shelf is bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.blackbox.layout import SIZE_BYTES, Identity, Writer
from shared.blackbox.report import Ending
from shared.blackbox.shelf import MAX_KEPT, box_path, drop_left, keep_left, read, reports
from shared.errors import UserError
from shared.ids import EngineId, ServiceName
from shared.messages import BlackBox


@pytest.fixture
def live(tmp_path: Path) -> Path:
    folder = tmp_path / "live"
    folder.mkdir()
    return folder


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    return tmp_path / "shelf"


def leave(live: Path, engine: str, *, pid: int = 7) -> Path:
    data = bytearray(SIZE_BYTES)
    Writer(data, Identity(engine=EngineId(engine), service=ServiceName("m"), pid=pid))
    path = box_path(live, engine)
    path.write_bytes(data)
    return path


def unseen(_: Identity) -> Ending:
    return Ending()


def test_a_box_that_nobody_holds_is_kept_once(live, shelf):
    leave(live, "e1", pid=42)

    def how_ended(identity: Identity) -> Ending:
        return Ending(how=f"{identity.pid} is dead")

    first, second = keep_left(live, shelf, how_ended), keep_left(live, shelf, how_ended)

    assert (1, 0) == (len(first), len(second))
    assert "42 is dead" == read(shelf / "e1.json").cause
    assert [] == list(live.iterdir())
    assert 0o600 == (shelf / "e1.json").stat().st_mode & 0o777
    assert 0o700 == shelf.stat().st_mode & 0o777
    assert "42 is dead" == first[0].told(BlackBox, host="h").cause


@pytest.mark.parametrize("content", [bytes(SIZE_BYTES), b"garbage"])
def test_a_box_that_says_nothing_is_removed(live, shelf, content):
    path = box_path(live, "e1")
    path.write_bytes(content)

    assert [] == keep_left(live, shelf, unseen)
    assert not path.exists()


def test_a_box_that_is_being_made_is_left_alone(live, shelf):
    path = box_path(live, "e1")
    path.touch()

    assert [] == keep_left(live, shelf, unseen)
    assert path.exists()


def test_a_box_that_cannot_be_kept_stays(live, shelf):
    path = leave(live, "e1")
    shelf.write_text("a file where the folder should be")

    with pytest.raises(OSError, match="shelf"):
        keep_left(live, shelf, unseen)
    assert path.exists()


def test_the_oldest_go_when_the_shelf_is_full(live, shelf):
    shelf.mkdir()
    for number in range(MAX_KEPT + 3):
        old = shelf / f"old{number:02}.json"
        old.touch()
        os.utime(old, (number, number))
    leave(live, "e1")

    keep_left(live, shelf, unseen)

    assert MAX_KEPT == len(reports(shelf))
    assert "e1.json" == reports(shelf)[0].name
    assert "old04.json" == reports(shelf)[-1].name


def test_dropped_boxes_are_gone(live, shelf):
    leave(live, "e1")

    drop_left(live)

    assert [] == keep_left(live, shelf, unseen)
    assert [] == list(live.iterdir())


def test_nothing_there_is_nothing_found(tmp_path, shelf):
    assert [] == keep_left(tmp_path / "absent", shelf, unseen)
    assert [] == reports(shelf)


def test_a_file_that_is_no_report_is_named(tmp_path):
    other = tmp_path / "x.json"
    other.write_text("{}")

    with pytest.raises(UserError, match="no report"):
        read(other)
    with pytest.raises(UserError, match="cannot read"):
        read(tmp_path / "absent.json")
