"""The two top-level packages are ours: both names exist on the public index as other projects."""

from __future__ import annotations

from pathlib import Path

import services
import shared

ROOT = Path(__file__).resolve().parents[2]


def test_services_and_shared_are_this_checkouts():
    assert ROOT / "services" / "__init__.py" == Path(services.__file__).resolve()
    assert ROOT / "shared" / "__init__.py" == Path(shared.__file__).resolve()
