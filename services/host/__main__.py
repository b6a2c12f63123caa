"""Entry of a host process: settings, service. Nothing is kept in modules."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from services.host.settings import PREFIX, STOP_S, HostSettings
from services.host.wiring import serve
from shared import logs, runtime, settings
from shared.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a host until it is told to stop; return the exit code."""
    try:
        words = sys.argv[1:] if argv is None else argv
        chosen = settings.load(HostSettings, prefix=PREFIX, argv=words)
    except UserError as error:
        runtime.complain(error)
        return runtime.EXIT_USER_ERROR
    logs.configure(chosen.log, service="host")
    return runtime.run(partial(serve, chosen), drain_s=chosen.drain_s + STOP_S)


if __name__ == "__main__":
    sys.exit(main())
