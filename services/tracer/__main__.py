"""Entry of a tracer process: settings, policies, service. Nothing is kept in modules."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from services.tracer.adapters.policy_file import policies_of
from services.tracer.settings import PREFIX, STOP_S, TracerSettings
from services.tracer.wiring import serve
from shared import logs, runtime, settings
from shared.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a tracer until it is told to stop; return the exit code."""
    try:
        words = sys.argv[1:] if argv is None else argv
        chosen = settings.load(TracerSettings, prefix=PREFIX, argv=words)
        policies = policies_of(chosen.policies)
    except UserError as error:
        runtime.complain(error)
        return runtime.EXIT_USER_ERROR
    logs.configure(chosen.log, service="tracer")
    return runtime.run(partial(serve, chosen, policies), drain_s=chosen.drain_s + STOP_S)


if __name__ == "__main__":
    sys.exit(main())
