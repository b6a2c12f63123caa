"""`--engine-arg KEY=VALUE` of several commands. Pure."""

from __future__ import annotations

from shared.errors import UserError


def engine_settings(pairs: list[str]) -> dict[str, str]:
    """Return `vllm-max-num-seqs=64` as a setting of the engine and its value. Raises `UserError`."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UserError(
                f"--engine-arg {pair!r} is not KEY=VALUE",
                hint="as --engine-arg vllm-max-num-seqs=64",
            )
        found[key] = value
    return found


def engine_words(pairs: list[str]) -> tuple[str, ...]:
    """Return the same as words of an engine's command line. Raises `UserError`."""
    return tuple(
        word for key, value in engine_settings(pairs).items() for word in (f"--{key}", value)
    )
