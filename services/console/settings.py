"""Settings of the command line: where things are kept, and the key to show. All else is an option of a command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from shared.errors import UserError
from shared.settings import Secret, environment

HOME = "HEADRACE_HOME"
API_KEY = "HEADRACE_API_KEY"


class ConsoleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment says."""

    home: Path
    """Models, logs and bus files; `HEADRACE_HOME`, else `headrace` in the XDG data folder."""
    api_key: Secret = Secret()
    """`HEADRACE_API_KEY`: sent as bearer token by `chat`, `bench` and the warm-up."""
    environment: dict[str, str]
    """What started processes inherit."""

    @property
    def key(self) -> str | None:
        """The API key, if one is set."""
        return self.api_key.reveal() or None

    @property
    def models(self) -> Path:
        """Folder of model directories."""
        return self.home / "models"

    def platform_folder(self, name: str) -> Path:
        """Return the folder of the platform `name`. Raises `UserError` where the name cannot be a folder's."""
        if not name or not name.replace("-", "").replace("_", "").isalnum():
            raise UserError(
                f"{name!r} is no name for a platform", hint="use letters, digits, - and _"
            )
        return self.home / "platforms" / name


def read_settings(env: Mapping[str, str] | None = None) -> ConsoleSettings:
    """Return the settings from the environment."""
    known = dict(env) if env is not None else environment()
    data = known.get("XDG_DATA_HOME") or str(
        Path(known.get("HOME", "~")).expanduser() / ".local" / "share"
    )
    home = Path(known.get(HOME) or Path(data) / "headrace")
    inherited = {key: value for key, value in known.items() if key != API_KEY}
    return ConsoleSettings(
        home=home.expanduser().absolute(),
        api_key=Secret(known.get(API_KEY, "")),
        environment=inherited,
    )
