"""Entry of an engine process: settings, bus, backend, service. `main` may run in a forked child: nothing is kept in modules."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from functools import partial

from services.engine.backends import make_backend
from services.engine.blackbox import recorded
from services.engine.metrics_page import served_page
from services.engine.ports import EngineFailedError
from services.engine.service import EngineService
from services.engine.settings import PREFIX, STOP_S, EngineSettings
from shared import logs, runtime, settings
from shared.errors import UserError
from shared.ids import new_engine_id
from shared.natsbus import NatsBus


def main(argv: Sequence[str] | None = None) -> int:
    """Run an engine until it is told to stop; return the exit code."""
    try:
        words = sys.argv[1:] if argv is None else argv
        chosen = settings.load(EngineSettings, prefix=PREFIX, argv=words)
    except UserError as error:
        runtime.complain(error)
        return runtime.EXIT_USER_ERROR
    logs.configure(chosen.log, service="engine")
    return runtime.run(partial(_serve, chosen), drain_s=chosen.drain_s + STOP_S)


async def _serve(chosen: EngineSettings, process: runtime.Runtime) -> None:
    bus = await NatsBus.connect(chosen.nats, group=process.group, name=chosen.name or "engine")
    host, engine = socket.gethostname(), new_engine_id()
    service = EngineService(chosen, make_backend(chosen), bus, engine=engine, host=host)
    page = served_page(chosen, bus, service, engine)
    try:
        async with page, recorded(chosen, service, bus, process):
            await service.run(process)
    except EngineFailedError as error:
        raise UserError(str(error)) from error
    finally:
        await bus.close()


if __name__ == "__main__":
    sys.exit(main())
