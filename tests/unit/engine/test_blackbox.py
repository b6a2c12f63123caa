"""When an engine keeps its black box, when it removes it, and what is in it; with the fake engine in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.engine.blackbox import recorded
from services.engine.ports import EngineFailedError
from services.engine.settings import BlackBoxSettings, EngineSettings
from shared.blackbox.layout import Box, decode
from shared.blackbox.shelf import read
from shared.membus import MemoryBus
from shared.messages import FoundBlackBox
from tests.support.engine_shell import ENGINE, Shell, engine_shell, virtual


def settings(folder: Path, kept: Path | None = None) -> EngineSettings:
    box = BlackBoxSettings(folder=str(folder), kept_folder=str(kept or ""))
    return EngineSettings(backend="fake", blackbox=box)


@asynccontextmanager
async def recording(chosen: EngineSettings, *, wait_ready: bool = True) -> AsyncIterator[Shell]:
    async with (
        engine_shell(wait_ready=wait_ready) as shell,
        recorded(chosen, shell.service, shell.bus, shell.runtime),
    ):
        yield shell


def box_in(folder: Path) -> Box:
    return decode((folder / f"{ENGINE}.box").read_bytes())


async def end(
    folder: Path, error: BaseException, *, wait_ready: bool = True, is_asked: bool = False
) -> None:
    """Run an engine to an end that is none of its own."""
    async with recording(settings(folder), wait_ready=wait_ready) as shell:
        await asyncio.sleep(2 * wait_ready)
        if is_asked:
            shell.runtime.stop.set()
        raise error


async def die(folder: Path, *, wait_ready: bool = True) -> None:
    """Run an engine whose core dies."""
    with pytest.raises(EngineFailedError):
        await end(folder, EngineFailedError("the core died"), wait_ready=wait_ready)


@virtual
async def test_steps_seconds_and_requests_are_in_the_box(tmp_path):
    async with recording(settings(tmp_path)) as shell:
        await shell.gateway.accepted(max_tokens=1000)
        await asyncio.sleep(3.5)
        box = box_in(tmp_path)

    assert ENGINE == box.identity.engine
    assert box.steps[-1].number > 200
    assert {1} == {step.decodes for step in box.steps[1:]}
    assert 4 <= len(box.seconds) <= 5
    assert 1 == box.seconds[-1].running
    assert box.seconds[-1].rss_bytes > 1 << 20
    assert "ready" in {note.what for note in box.notes}
    (request,) = box.table.requests
    assert ("chatcmpl-x", "decode") == (request.request, request.stage)
    assert request.tokens > 100
    # Wall time, and the steps' and the seconds' is the same.
    assert abs(box.steps[-1].unix_s - box.seconds[-1].unix_s) < 1.0


@virtual
async def test_it_is_gone_after_a_clean_end(tmp_path):
    async with recording(settings(tmp_path)):
        assert box_in(tmp_path).identity is not None

    assert [] == list(tmp_path.iterdir())


@virtual
async def test_it_stays_with_the_reason_when_the_backend_dies(tmp_path):
    await die(tmp_path)

    assert ("failed", "the core died") == (
        box_in(tmp_path).notes[-1].what,
        box_in(tmp_path).notes[-1].why,
    )


@virtual
async def test_it_is_gone_when_the_engine_never_served(tmp_path):
    await die(tmp_path, wait_ready=False)

    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("is_asked", [True, False])
def test_it_stays_when_the_process_is_cancelled_unasked(tmp_path, is_asked):
    @virtual
    async def scenario() -> None:
        with pytest.raises(asyncio.CancelledError):
            await end(tmp_path, asyncio.CancelledError(), is_asked=is_asked)

    scenario()

    assert is_asked == (list(tmp_path.iterdir()) == [])


@virtual
async def test_an_engine_without_a_place_for_it_runs_on(tmp_path):
    (tmp_path / "file").touch()
    async with recording(settings(tmp_path / "file")) as shell:
        await shell.gateway.accepted()
        await asyncio.sleep(1)

        assert shell.gateway.text(1)


@virtual
async def test_what_a_dead_engine_left_is_kept_and_told_at_the_start(tmp_path):
    live, kept = tmp_path / "live", tmp_path / "kept"
    await die(live)
    told: list[FoundBlackBox] = []
    async with engine_shell() as shell:
        theirs = await MemoryBus.join(shell.hub, group=shell.runtime.group, name="tracer")
        await theirs.subscribe(FoundBlackBox, told.append)
        async with recorded(settings(live, kept), shell.service, shell.bus, shell.runtime):
            await asyncio.sleep(1)

    (message,) = told
    assert message.path == str(kept / f"{ENGINE}.json")
    assert (
        "nobody saw how it ended; the core died" == message.cause == read(Path(message.path)).cause
    )
