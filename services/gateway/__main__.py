"""Entry of a gateway process: settings, buses, doors, service. `main` may run in a forked child: nothing is kept in modules."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from services.gateway.service import STOP_S
from services.gateway.settings import PREFIX, GatewaySettings
from services.gateway.wiring import serve
from shared import logs, runtime, settings
from shared.errors import UserError
from shared.keys import KeyFile, check_exposure


def main(argv: Sequence[str] | None = None) -> int:
    """Run a gateway until it is told to stop; return the exit code."""
    try:
        chosen = settings.load(
            GatewaySettings, prefix=PREFIX, argv=sys.argv[1:] if argv is None else argv
        )
        check_exposure(
            chosen.http.host,
            has_keys=bool(chosen.keys_file),
            insecure_no_auth=chosen.insecure_no_auth,
        )
        keys = KeyFile(Path(chosen.keys_file) if chosen.keys_file else None)
    except UserError as error:
        runtime.complain(error)
        return runtime.EXIT_USER_ERROR
    logs.configure(chosen.log, service="gateway")
    return runtime.run(partial(serve, chosen, keys), drain_s=chosen.drain_s + STOP_S)


if __name__ == "__main__":
    sys.exit(main())
