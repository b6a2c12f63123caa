"""Black boxes of engines that died: kept in the host's folder, and told on the bus."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from shared.blackbox.layout import Identity
from shared.blackbox.report import Ending
from shared.blackbox.shelf import HowEnded, drop_left, keep_left
from shared.bus import Bus
from shared.clock import wall_time_s
from shared.errors import BusError
from shared.memory_group import memory_group
from shared.messages import BlackBox
from shared.processes.supervisor import Death


class Boxes:
    """The boxes of one platform's engines: those in use in `live`, reports of the dead in `shelf`."""

    def __init__(self, live: Path, shelf: Path, *, say: Callable[[str], None]) -> None:
        self.live = live
        self.bus: Bus | None = None
        """Set once there is one."""
        self._shelf = shelf
        self._say = say

    def keep_found(self) -> None:
        """Keep what an earlier life of the platform left: it was killed itself, or lost its power."""
        self._keep(lambda _: Ending())

    def keep_of(self, death: Death) -> None:
        """Keep the box of a process that died, if it left one."""
        seen = Ending(
            how=death.how,
            unix_s=wall_time_s(),
            oom_kills=memory_group().oom_kills,
            log=str(death.log),
        )

        def how_ended(identity: Identity) -> Ending:
            return seen if identity.pid == death.pid else Ending(oom_kills=seen.oom_kills)

        self._keep(how_ended)

    def drop(self) -> None:
        """Remove the boxes of engines that were ended on purpose."""
        drop_left(self.live)

    def _keep(self, how_ended: HowEnded) -> None:
        try:
            found = keep_left(self.live, self._shelf, how_ended)
        except OSError as error:
            self._say(f"a black box could not be kept in {self._shelf}: {error.strerror}")
            return
        for kept in found:
            said = kept.report
            self._say(
                f"{said.name or said.engine} died: {said.cause}; {said.summary}; its black box: {kept.path}"
            )
            self._tell(kept.told(BlackBox, host=socket.gethostname()))

    def _tell(self, message: BlackBox) -> None:
        if self.bus is None:
            return
        try:
            self.bus.publish(message)
        except BusError as error:
            self._say(f"nobody was told of the black box of {message.engine}: {error}")
