"""Entry of the `headrace` command."""

from __future__ import annotations

import sys

from services.console.cli import main

if __name__ == "__main__":
    sys.exit(main())
