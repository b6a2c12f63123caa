"""`headrace model`: fetch and list, as the person sees them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from services.console import output
from services.console.settings import ConsoleSettings
from shared.models.fetch import fetch
from shared.models.store import Model, list_models

MIB = 1 << 20


class Line(msgspec.Struct, frozen=True):
    """One model for people and scripts."""

    name: str
    path: Path
    size_mib: int
    dtype: str
    context_tokens: int | None
    state: str


def _line(model: Model) -> Line:
    facts = model.facts
    return Line(
        name=model.name,
        path=model.path,
        size_mib=model.weight_bytes // MIB,
        dtype=facts.dtype if facts else "?",
        context_tokens=facts.context_tokens if facts else None,
        state=model.problem or str(model.checksum),
    )


def fetch_command(name: str, settings: ConsoleSettings) -> int:
    """Make a model and say where it is; return the exit code."""
    model = asyncio.run(
        fetch(name, settings.models, env=settings.environment, progress=output.note)
    )
    output.line(str(model.path))
    return 0


def list_command(settings: ConsoleSettings, *, as_json: bool) -> int:
    """List the models with every byte checked; return 1 where one would not load as it was fetched."""
    models = list_models(settings.models, read_content=True)
    lines = [_line(model) for model in models]
    if as_json:
        output.json_document(
            [{**msgspec.structs.asdict(line), "path": str(line.path)} for line in lines]
        )
    elif not lines:
        output.line(
            f"no models in {settings.models}; `headrace model fetch smollm2` makes the default one"
        )
    else:
        output.line(f"{'NAME':<20}{'MIB':>8}  {'DTYPE':<10}{'CONTEXT':>9}  {'FILES':<14}PATH")
        for line in lines:
            context = line.context_tokens or "?"
            output.line(
                f"{line.name:<20}{line.size_mib:>8}  {line.dtype:<10}{context:>9}  {line.state:<14}{line.path}"
            )
    return 1 if any(model.problem or model.checksum == "changed" for model in models) else 0
