"""`headrace validate-model`: files, then the model in an engine of its own, then the reference; a verdict."""

from __future__ import annotations

import argparse
import asyncio

from services.console import output
from services.console.engine_args import engine_words
from services.console.modelcheck import tables
from services.console.modelcheck.judge import (
    Bounds,
    Check,
    Verdict,
    compare,
    figures,
    judge,
)
from services.console.modelcheck.probe_child import Deadlines, probe
from services.console.modelcheck.texts import QUESTIONS, TEXT
from services.console.settings import ConsoleSettings
from shared.errors import UserError
from shared.messages import TextPrompt
from shared.models.files import ModelFacts
from shared.models.probe import Broke, Line, Order, Score
from shared.models.store import ChecksumState, Model, describe, directory_of

PREFIX_REQUESTS = 16
"""One in sixteen has to compute the prefix: a cache that finds all of it has a rate of 0.93."""
CONTEXT_TOKENS = 2048
"""Enough for all that is asked, so that a long context costs no memory."""


def validate(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    """Judge a model and return the exit code: 1 where it failed. Raises `UserError`."""
    verdict = asyncio.run(_validate(options, settings))
    output.progress_done()
    if options.output == "json":
        output.json_document(verdict)
    else:
        output.line(tables.verdict(verdict))
    return 0 if verdict.passed else 1


async def _validate(options: argparse.Namespace, settings: ConsoleSettings) -> Verdict:
    bounds = _bounds(options)
    model = _described(options.model, settings)
    reference = _described(options.reference, settings) if options.reference else None
    if reference is not None and reference.facts is None:
        raise UserError(f"the reference would not load: {reference.problem}")
    checks = [_files(model)]
    lines: list[Line] = [Broke(step="load", reason="the files are broken")]
    if model.facts is not None:
        lines = await _probe(model, model.facts, _order(options), options, settings)
    checks += judge(lines, bounds)
    if reference is not None and reference.facts is not None:
        told = await _probe(reference, reference.facts, Order(score=SCORE), options, settings)
        checks.append(compare(lines, told, bounds))
    return Verdict(
        model=str(model.path),
        reference=str(reference.path) if reference else "",
        passed=all(check.passed for check in checks),
        checks=checks,
        figures=figures(lines),
    )


SCORE = Score(prompt=TextPrompt(text=TEXT))


def _order(options: argparse.Namespace) -> Order:
    return Order(
        questions=QUESTIONS,
        answer_tokens=options.answer_tokens,
        prefix_requests=PREFIX_REQUESTS,
        score=SCORE,
    )


def _bounds(options: argparse.Namespace) -> Bounds:
    names = Bounds.__struct_fields__
    given = {name: getattr(options, name, None) for name in names}
    return Bounds(**{name: value for name, value in given.items() if value is not None})


def _described(name_or_path: str, settings: ConsoleSettings) -> Model:
    directory = directory_of(name_or_path, settings.models)
    if not directory.is_dir():
        raise UserError(
            f"{directory} is no directory", hint="give a model's directory in HF layout"
        )
    return describe(directory, read_content=True)


def _files(model: Model) -> Check:
    is_changed = model.checksum is ChecksumState.CHANGED
    note = (
        "not what was fetched: a file is missing or was changed" if is_changed else model.checksum
    )
    return Check(
        name="files", passed=not (model.problem or is_changed), note=model.problem or str(note)
    )


async def _probe(
    model: Model,
    facts: ModelFacts,
    order: Order,
    options: argparse.Namespace,
    settings: ConsoleSettings,
) -> list[Line]:
    room = order.answer_tokens + CONTEXT_TOKENS
    context = min(room, facts.context_tokens or room)
    return await probe(
        model.path,
        order,
        ("--vllm-max-model-len", str(context), *engine_words(options.engine_arg)),
        settings=settings,
        deadlines=Deadlines(load_s=options.start_timeout, step_s=options.step_timeout),
        progress=lambda step: output.progress(f"{model.name}: {step}"),
    )
