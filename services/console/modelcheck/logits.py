"""`headrace debug-logits`: what a model expects at each position, beside what a reference expects at the same tokens."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import msgspec

from services.console import output
from services.console.engine_args import engine_words
from services.console.fleet.instance import bus_of
from services.console.modelcheck import tables
from services.console.modelcheck.deviation import Comparison, compare
from services.console.modelcheck.gateways import captured
from services.console.modelcheck.judge import reason_of
from services.console.modelcheck.probe_child import Deadlines, probe
from services.console.plain import cleaned
from services.console.settings import ConsoleSettings
from shared.errors import HeadraceError
from shared.messages import ChatPrompt, Prompt, TextPrompt, TokensPrompt
from shared.models.probe import Order, Score, Scored
from shared.models.store import Model, resolve

MAX_CONTEXT_TOKENS = 8192
"""Longest prompt with its answer, where the model's context is not shorter: what an engine's default pool holds of most models."""
LEAST_TOP = 50
"""Alternatives that are compared, however few are shown: a token beyond them is known to be unlikely only."""


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `-o json`."""

    model: Path
    reference: Path | None
    comparison: Comparison


def debug(options: argparse.Namespace, settings: ConsoleSettings) -> int:
    """Show the positions; return 1 where the reference deviates by more than the threshold. Raises `UserError`, `HeadraceError`."""
    looked = asyncio.run(_look(options, settings))
    output.progress_done()
    told = looked.comparison
    if options.output == "json":
        output.json_document(msgspec.to_builtins(looked, enc_hook=str))
    else:
        reference = str(looked.reference or "")
        output.line(
            tables.comparison(
                cleaned(told), model=str(looked.model), reference=reference, top=options.top
            )
        )
    return 0 if told.begins_at is None else 1


async def _look(options: argparse.Namespace, settings: ConsoleSettings) -> Looked:
    model = resolve(options.model, settings.models)
    reference = resolve(options.against, settings.models) if options.against else None
    prompt = await _prompt(options, settings)
    top = max(options.top, LEAST_TOP) if reference else options.top
    is_prompt = options.positions == "prompt"
    ours = await _score(
        model,
        Score(prompt=prompt, generate=0 if is_prompt else options.tokens, top=top),
        options,
        settings,
    )
    theirs = None
    if reference is not None:
        forced = TokensPrompt(token_ids=ours.token_ids)
        theirs = await _score(reference, Score(prompt=forced, top=top), options, settings)
    start = 1 if is_prompt else ours.prompt_tokens
    chosen = range(start, min(start + options.tokens, len(ours.token_ids)))
    comparison = compare(ours, theirs, chosen=chosen, threshold=options.threshold)
    return Looked(
        model=model.path, reference=reference.path if reference else None, comparison=comparison
    )


async def _prompt(options: argparse.Namespace, settings: ConsoleSettings) -> Prompt:
    if options.request_id is not None:
        address = bus_of(settings.platform_folder(options.name))
        found = await captured(address, options.request_id)
        if len(found.prompts) > 1:
            output.note(f"the request has {len(found.prompts)} prompts; this is the first")
        return found.prompts[0]
    if options.raw:
        return TextPrompt(text=options.prompt)
    return ChatPrompt(
        messages_json=msgspec.json.encode([{"role": "user", "content": options.prompt}])
    )


async def _score(
    model: Model, score: Score, options: argparse.Namespace, settings: ConsoleSettings
) -> Scored:
    assert model.facts is not None
    context = min(MAX_CONTEXT_TOKENS, model.facts.context_tokens or MAX_CONTEXT_TOKENS)
    args = (
        "--vllm-max-model-len",
        str(context),
        "--vllm-extra-args",
        f'{{"max_logprobs":{score.top}}}',
    )
    lines = await probe(
        model.path,
        Order(score=score),
        (*args, *engine_words(options.engine_arg)),
        settings=settings,
        deadlines=Deadlines(load_s=options.start_timeout, step_s=options.step_timeout),
        progress=lambda step: output.progress(f"{model.name}: {step}"),
    )
    scored = next((line for line in lines if isinstance(line, Scored)), None)
    if scored is None:
        raise HeadraceError(f"{model.path}: {reason_of(lines, 'score')}")
    return scored
