"""An engine without accounts, to measure theirs: a book that takes nothing and tells nothing.

Run as a module it is an engine process with the fake backend and such a book.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import override

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from services.engine import __main__ as engine  # noqa: E402 - needs the path above
from services.engine import backends  # noqa: E402
from services.engine.adapters.fake import FakeEngine  # noqa: E402
from services.engine.ports import InferenceEngine  # noqa: E402
from services.engine.settings import EngineSettings  # noqa: E402
from services.engine.stepbook import StepBook  # noqa: E402
from services.engine.steps.step import Step  # noqa: E402
from shared.ids import RequestId  # noqa: E402
from shared.messages import Spent, Stage  # noqa: E402


class NoBook(StepBook):
    """Takes nothing, tells nothing."""

    @override
    def open(self, key: str, request: RequestId, *, received_at: float) -> None:
        return

    @override
    def enqueue(self, key: str, ref: str, *, at: float, copies: int = 1) -> None:
        return

    @override
    def enter(self, key: str, stage: Stage, *, at: float) -> None:
        return

    @override
    def end_choice(self, ref: str) -> None:
        return

    @override
    def close(self, key: str, *, at: float) -> None:
        return

    @override
    def spent(self, key: str, *, until: float, decode_tokens: int) -> Spent | None:
        return None

    @override
    def feed(self, step: Step) -> None:
        return


def without_accounts(settings: EngineSettings) -> InferenceEngine:
    """Return the fake backend with a book that is none."""
    return FakeEngine(settings.fake, NoBook())


def main(argv: Sequence[str] | None = None) -> int:
    """Run an engine process, as `services.engine` does."""
    backends.make_backend = engine.make_backend = without_accounts
    return engine.main(argv)


if __name__ == "__main__":
    sys.exit(main())
