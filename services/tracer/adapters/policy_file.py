"""Reads the file of policies, YAML or JSON, which is YAML too."""

from __future__ import annotations

from pathlib import Path

import yaml

from shared.errors import UserError
from shared.observability import Policies, read_policies


def policies_of(file: str) -> Policies:
    """Return what the file says; no file: the defaults. Raises `UserError`."""
    if not file:
        return Policies()
    try:
        document = yaml.safe_load(Path(file).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the policies in {file}: {error}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{file} is no YAML: {' '.join(str(error).split())}") from error
    try:
        return read_policies(document or {})
    except UserError as error:
        raise UserError(f"{file}, {error}", hint=error.hint) from error
