"""Entry of an operator process: settings, service. Nothing is kept in modules."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from services.operator.settings import PREFIX, STOP_S, OperatorSettings
from services.operator.wiring import serve
from shared import logs, runtime, settings
from shared.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Run an operator until it is told to stop; return the exit code."""
    try:
        words = sys.argv[1:] if argv is None else argv
        chosen = settings.load(OperatorSettings, prefix=PREFIX, argv=words)
    except UserError as error:
        runtime.complain(error)
        return runtime.EXIT_USER_ERROR
    logs.configure(chosen.log, service="operator")
    return runtime.run(partial(serve, chosen), drain_s=STOP_S)


if __name__ == "__main__":
    sys.exit(main())
