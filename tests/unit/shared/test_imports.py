"""What services import stays small, and hiding a module leaves no trace."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from shared.imports import without


def test_a_hidden_module_is_missing_meanwhile_and_there_afterwards(tmp_path):
    (tmp_path / "hidden_for_a_test.py").write_text("")
    sys.path.insert(0, str(tmp_path))
    try:
        with without("hidden_for_a_test", "sys"):
            with pytest.raises(ImportError):
                importlib.import_module("hidden_for_a_test")
            assert sys is importlib.import_module("sys")

        assert importlib.import_module("hidden_for_a_test")
    finally:
        sys.path.remove(str(tmp_path))


@pytest.mark.parametrize("service", ["gateway", "tracer", "engine", "host", "kvstore"])
def test_no_service_imports_what_it_does_not_use(service):
    program = f"import services.{service}.__main__, sys; print({{'aiohttp', 'rich', 'torch', 'vllm', 'numpy'}} & {{*sys.modules}})"

    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert "set()" == found.stdout.strip()
