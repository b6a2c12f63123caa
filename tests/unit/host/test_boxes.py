"""What a host does with the boxes of its engines."""

from __future__ import annotations

import asyncio
from pathlib import Path

from services.host.boxes import Boxes
from shared.blackbox.layout import SIZE_BYTES, Identity, Writer
from shared.ids import EngineId, ServiceName
from shared.membus import MemoryBus, MemoryHub
from shared.messages import BlackBox
from shared.processes.supervisor import Death

PID = 4242


def leave(boxes: Boxes, engine: str, pid: int) -> None:
    boxes.live.mkdir(exist_ok=True)
    data = bytearray(SIZE_BYTES)
    Writer(data, Identity(engine=EngineId(engine), service=ServiceName("m"), pid=pid))
    (boxes.live / f"{engine}.box").write_bytes(data)


def test_the_cause_is_told_of_the_process_that_died_and_of_no_other(tmp_path):
    async def scenario() -> tuple[list[BlackBox], list[str]]:
        said: list[str] = []
        told: list[BlackBox] = []
        boxes = Boxes(tmp_path / "live", tmp_path, say=said.append)
        async with asyncio.TaskGroup() as group:
            hub = MemoryHub()
            boxes.bus = await MemoryBus.join(hub, group=group, name="console")
            theirs = await MemoryBus.join(hub, group=group, name="tracer")
            await theirs.subscribe(BlackBox, told.append)
            leave(boxes, "e1", PID)
            leave(boxes, "e2", PID + 1)
            boxes.keep_of(Death(PID, "signal SIGKILL", Path("/l")))
            await asyncio.sleep(0.05)
            await boxes.bus.close()
            await theirs.close()
        return told, said

    told, said = asyncio.run(scenario())

    assert {"e1": "signal SIGKILL", "e2": "nobody saw how it ended"} == {
        each.engine: each.cause for each in told
    }
    assert 2 == len(said)
    assert str(tmp_path / "e1.json") in said[0]


def test_without_a_bus_a_box_is_kept_all_the_same(tmp_path):
    boxes = Boxes(tmp_path / "live", tmp_path, say=lambda _: None)
    leave(boxes, "e1", PID)

    boxes.keep_found()

    assert (tmp_path / "e1.json").exists()


def test_a_box_that_cannot_be_kept_is_said(tmp_path):
    said: list[str] = []
    (tmp_path / "shelf").touch()
    boxes = Boxes(tmp_path / "live", tmp_path / "shelf", say=said.append)
    leave(boxes, "e1", PID)

    boxes.keep_found()

    assert "could not be kept" in said[0]


def test_boxes_of_engines_that_were_stopped_are_dropped(tmp_path):
    boxes = Boxes(tmp_path / "live", tmp_path, say=lambda _: None)
    leave(boxes, "e1", PID)

    boxes.drop()
    boxes.keep_found()

    assert not (tmp_path / "e1.json").exists()
