"""What services import stays small, and hiding a module leaves no trace."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shared.imports import without


def test_a_hidden_module_is_missing_meanwhile_and_there_afterwards():
    with without("colorsys", "sys"):
        with pytest.raises(ImportError):
            import colorsys  # noqa: PLC0415
        import sys as there  # noqa: PLC0415

    import colorsys  # noqa: PLC0415

    assert "colorsys" == colorsys.__name__
    assert sys is there


@pytest.mark.parametrize("service", ["gateway", "tracer", "engine", "host", "kvstore"])
def test_no_service_imports_what_it_does_not_use(service):
    program = f"import services.{service}.__main__, sys; print({{'aiohttp', 'rich', 'torch', 'vllm', 'numpy'}} & {{*sys.modules}})"

    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert "set()" == found.stdout.strip()
