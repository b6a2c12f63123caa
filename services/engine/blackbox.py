"""What goes into the engine's black box: each step as it ends, and once a second how things stand and whose requests are under way.

Opens, fills and removes the box; the bytes are `shared.blackbox`'s. A box that cannot be opened is a warning, never the engine's end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from services.engine.adapters.box_file import BoxFile
from services.engine.backends import find_devices
from services.engine.ports import Devices, EngineFailedError
from services.engine.service import EngineService
from services.engine.settings import BlackBoxSettings, EngineSettings
from services.engine.steps.step import Step
from shared import logs
from shared.blackbox import layout
from shared.blackbox.layout import Identity, Writer
from shared.blackbox.report import Ending
from shared.blackbox.shelf import keep_left
from shared.bus import Bus
from shared.clock import stamp_clock, wall_time_s
from shared.errors import BusError
from shared.memory_group import memory_group
from shared.messages import EngineHeartbeat, EngineState, FoundBlackBox
from shared.processes.tree import process_tree
from shared.runtime import Runtime

SECOND_S = 1.0

_log = logs.get("blackbox")


class Recorder:
    """Fills one box. Made inside the running loop."""

    def __init__(
        self,
        writer: Writer,
        *,
        heartbeat: Callable[[], EngineHeartbeat],
        requests: Callable[[], Iterable[layout.Request]],
        devices: Callable[[], Devices | None],
    ) -> None:
        self._writer = writer
        self._heartbeat = heartbeat
        self._requests = requests
        self._find_devices = devices
        self._devices: Devices | None = None
        self._clock = stamp_clock()
        self._offset_s = wall_time_s() - self._clock()
        self._state = EngineState.STARTING
        self.has_served = False
        """Whether it was seen ready, or at work."""

    def on_step(self, step: Step) -> None:
        """Keep a step that ended."""
        self.has_served = True
        computed = again = 0
        for each in step.prefills:
            computed += each.tokens
            again += each.again
        self._writer.step(
            layout.Step(
                number=step.number,
                unix_s=step.scheduled_at + self._offset_s,
                us=max(0, int((step.ended_at - step.scheduled_at) * 1e6)),
                decodes=step.decodes,
                prompts=len(step.prefills),
                prefill_tokens=computed,
                recomputed_tokens=again,
                preemptions=len(step.preempted),
                free_blocks=step.free_blocks,
                mode=step.mode,
            )
        )

    def failed(self, reason: str) -> None:
        """Keep why the engine is about to end."""
        self._writer.note("failed", reason, unix_s=self._now())

    async def run(self) -> None:
        """Look once a second, for ever."""
        while True:
            self.look()
            await asyncio.sleep(SECOND_S)

    def look(self) -> None:
        """Keep how things stand."""
        self._offset_s = wall_time_s() - self._clock()
        now = self._now()
        beat = self._heartbeat()
        if beat.state is not self._state:
            self._on_state(beat.state, now)
        self._writer.second(self._second(beat, now))
        self._writer.table(list(self._requests()), unix_s=now)

    def _on_state(self, state: EngineState, now: float) -> None:
        self._state = state
        self._writer.note(state.value, unix_s=now)
        if state is EngineState.READY:
            self.has_served = True
            self._devices = self._find_devices()

    def _second(self, beat: EngineHeartbeat, now: float) -> layout.Second:
        group = memory_group()
        return layout.Second(
            unix_s=now,
            state=beat.state.value,
            step=beat.step,
            step_age_s=round(beat.step_age_s, 3),
            running=beat.running,
            waiting=beat.waiting,
            free_blocks=beat.free_blocks,
            total_blocks=beat.total_blocks,
            processes=process_tree(os.getpid()),
            devices=self._devices() if self._devices is not None else [],
            group_bytes=group.used_bytes,
            group_limit_bytes=group.limit_bytes,
            oom_kills=group.oom_kills,
        )

    def _now(self) -> float:
        return self._clock() + self._offset_s


@asynccontextmanager
async def recorded(
    chosen: EngineSettings, service: EngineService, bus: Bus, process: Runtime
) -> AsyncIterator[None]:
    """Keep a black box of what runs meanwhile, if the settings want one. It stays where that fails, and where this process is killed."""
    settings = chosen.blackbox
    _keep_found(settings, bus, host=service.heartbeat().host)
    opened = _open(settings, service.heartbeat())
    if opened is None:
        yield
        return
    box, writer = opened
    recorder = Recorder(
        writer,
        heartbeat=service.heartbeat,
        requests=service.under_way,
        devices=partial(find_devices, chosen),
    )
    service.book.listeners.append(recorder.on_step)
    looking = process.group.create_task(recorder.run(), name="black box")
    is_kept = True
    try:
        yield
        is_kept = False
    except EngineFailedError as error:
        recorder.failed(str(error))
        is_kept = recorder.has_served  # else it did not start, and its own words say why
        raise
    except asyncio.CancelledError:
        is_kept = not process.stop.is_set()
        raise
    finally:
        looking.cancel()
        service.book.listeners.remove(recorder.on_step)
        if not is_kept:
            box.remove()


def _open(settings: BlackBoxSettings, beat: EngineHeartbeat) -> tuple[BoxFile, Writer] | None:
    if not settings.folder:
        return None
    identity = Identity(
        engine=beat.engine,
        service=beat.service,
        name=beat.name,
        backend=beat.backend,
        version=beat.version,
        host=beat.host,
        pid=os.getpid(),
        began_unix_s=wall_time_s(),
    )
    try:
        return BoxFile.create(Path(settings.folder), identity)
    except OSError as error:
        _log.warning("no_black_box", folder=settings.folder, reason=str(error))
        return None


def _keep_found(settings: BlackBoxSettings, bus: Bus, *, host: str) -> None:
    """Keep what dead engines left, and tell."""
    if not settings.folder or not settings.kept_folder:
        return
    ending = Ending(oom_kills=memory_group().oom_kills)
    try:
        found = keep_left(Path(settings.folder), Path(settings.kept_folder), lambda _: ending)
    except OSError as error:
        _log.warning("black_box_not_kept", folder=settings.kept_folder, reason=str(error))
        return
    for kept in found:
        said = kept.report
        _log.warning(
            "black_box_kept",
            dead_engine=said.engine,
            cause=said.cause,
            summary=said.summary,
            path=str(kept.path),
        )
        try:
            bus.publish(kept.told(FoundBlackBox, host=host))
        except BusError as error:
            _log.warning("black_box_untold", reason=str(error))
