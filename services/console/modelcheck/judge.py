"""What the figures of a model mean: each check has a figure, a bound, and passes or fails. Pure: lines of a probe in, checks out."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from shared.models.probe import Answered, Broke, Line, Loaded, PrefixShared, Scored, Speed

T = TypeVar("T")

GRAM = 4
"""Tokens of a run that counts as repeated when it comes again."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
UNSHOWN = {"Cc", "Cn", "Co", "Cs"}
"""Unicode's categories of controls, and of what is no character."""
STEPS = ("load", "answers", "prefix", "score")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a healthy model keeps. Where each comes from stands in docs/how-to/check-a-model.md."""

    min_shown: float = 0.98
    """Share of characters that can be shown."""
    min_words: float = 0.7
    """Share of letters and digits among what is no white space."""
    max_own_perplexity: float = 5.0
    """Of the model's answers in its own eyes."""
    max_repetition: float = 0.07
    """Share of an answer's runs of four tokens that were in it before, the mean of all answers."""
    min_finished: float = 0.75
    """Share of answers that ended by themselves."""
    min_cache_hit_rate: float = 0.85
    """Of the prompt tokens of requests that begin alike."""
    max_perplexity: float = 30.0
    """Of a plain English text."""
    max_perplexity_ratio: float = 1.1
    """To the reference, on the same text."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the verdict."""

    name: str
    passed: bool
    figure: float | None = None
    bound: str = ""
    note: str = ""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is told and not judged."""

    name: str
    value: float
    unit: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """All that is said of a model."""

    model: str
    reference: str
    passed: bool
    checks: list[Check]
    figures: list[Figure]


def judge(lines: Sequence[Line], bounds: Bounds) -> list[Check]:
    """Return the checks of a model that was loaded, or that should have been. One that was not made has failed."""
    checks = [_load(lines)]
    answers = [line for line in lines if isinstance(line, Answered)]
    checks += _answers(answers, bounds) if answers else [_missing("answers", "answers", lines)]
    shared = _first(lines, PrefixShared)
    checks.append(_cache(shared, bounds) if shared else _missing(CACHE, "prefix", lines))
    scored = _first(lines, Scored)
    checks.append(
        _text(scored, bounds) if scored and scored.positions else _missing(TEXT, "score", lines)
    )
    return checks


CACHE, TEXT, RATIO = "kv_cache_hit_rate", "perplexity", "perplexity_ratio"


def compare(lines: Sequence[Line], reference: Sequence[Line], bounds: Bounds) -> Check:
    """Return how much less a model expects the text than its reference."""
    of_model, of_reference = _first(lines, Scored), _first(reference, Scored)
    if of_reference is None or not of_reference.positions:
        return Check(
            name=RATIO, passed=False, note=f"the reference: {reason_of(reference, 'score')}"
        )
    if of_model is None or not of_model.positions:
        return _missing(RATIO, "score", lines)
    # By the reference's tokens: where both have the same tokenizer, it is the ratio of their perplexities.
    excess = (loss(of_model) - loss(of_reference)) / len(of_reference.positions)
    note = (
        ""
        if of_model.token_ids == of_reference.token_ids
        else "they cut the text into other tokens"
    )
    return _at_most(RATIO, math.exp(min(excess, 700.0)), bounds.max_perplexity_ratio, note)


def figures(lines: Sequence[Line]) -> list[Figure]:
    """Return what is told for information."""
    told = [
        Figure(name="load", value=line.seconds, unit="s")
        for line in lines
        if isinstance(line, Loaded)
    ]
    told += [
        Figure(name=SPEEDS[line.step], value=line.tokens / max(line.seconds, 1e-9), unit="tok/s")
        for line in lines
        if isinstance(line, Speed)
    ]
    return told


SPEEDS = {"answers": "answers together", "prefill": "prefill"}


def loss(scored: Scored) -> float:
    """Return the negative log probability of a whole text but its first token."""
    return -sum(position.token.logprob for position in scored.positions)


def repetition(token_ids: list[int]) -> float:
    """Return the share of runs of `GRAM` tokens that were there before: 0 where none comes twice, nearly 1 for a loop."""
    grams = list(zip(*(token_ids[offset:] for offset in range(GRAM)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def reason_of(lines: Sequence[Line], step: str) -> str:
    """Return why a step has no result."""
    order = STEPS[: STEPS.index(step) + 1]
    broke = next((line for line in lines if isinstance(line, Broke) and line.step in order), None)
    if broke is None:
        return "not run"
    return broke.reason if broke.step == step else f"not run: {broke.step} failed"


def _first(lines: Sequence[Line], kind: type[T]) -> T | None:
    return next((line for line in lines if isinstance(line, kind)), None)


def _missing(name: str, step: str, lines: Sequence[Line]) -> Check:
    return Check(name=name, passed=False, note=reason_of(lines, step))


def _load(lines: Sequence[Line]) -> Check:
    loaded = _first(lines, Loaded)
    if loaded is None:
        return _missing("load", "load", lines)
    return Check(name="load", passed=True, figure=loaded.seconds, note=loaded.engine)


def _answers(answers: list[Answered], bounds: Bounds) -> list[Check]:
    text = "".join(answer.text for answer in answers)
    empty = [answer.question for answer in answers if not answer.text.strip()]
    logprobs = [each for answer in answers for each in answer.logprobs]
    mean = sum(logprobs) / len(logprobs) if logprobs else -math.inf
    finished = sum(answer.finish == "stop" for answer in answers) / len(answers)
    repeated = [repetition(answer.token_ids) for answer in answers]
    worst = answers[repeated.index(max(repeated))].question
    return [
        _at_least(
            "answers", 1 - len(empty) / len(answers), 1.0, f"empty: {empty[0]}" if empty else ""
        ),
        _at_least("characters", _shown(text), bounds.min_shown, ""),
        _at_least("words", _words(text), bounds.min_words, ""),
        _at_most("own_perplexity", math.exp(min(-mean, 700.0)), bounds.max_own_perplexity, ""),
        _at_most(
            "repetition",
            sum(repeated) / len(repeated),
            bounds.max_repetition,
            f"worst: {worst}",
        ),
        _at_least("finish", finished, bounds.min_finished, ""),
    ]


def _cache(shared: PrefixShared, bounds: Bounds) -> Check:
    rate = shared.cached_tokens / shared.prompt_tokens if shared.prompt_tokens else 0.0
    note = f"{shared.cached_tokens:,} of {shared.prompt_tokens:,} prompt tokens"
    return _at_least(CACHE, rate, bounds.min_cache_hit_rate, note)


def _text(scored: Scored, bounds: Bounds) -> Check:
    tokens = len(scored.positions)
    return _at_most(
        TEXT, math.exp(min(loss(scored) / tokens, 700.0)), bounds.max_perplexity, f"{tokens} tokens"
    )


def _shown(text: str) -> float:
    """Return the share of characters that can be shown."""
    if not text:
        return 0.0
    bad = sum(
        char == REPLACEMENT or (unicodedata.category(char) in UNSHOWN and char not in "\n\r\t")
        for char in text
    )
    return 1 - bad / len(text)


def _words(text: str) -> float:
    """Return the share of letters, marks and digits in what is no white space."""
    solid = [char for char in text if not char.isspace()]
    return sum(unicodedata.category(char)[0] in "LMN" for char in solid) / max(1, len(solid))


def _at_least(name: str, figure: float, bound: float, note: str) -> Check:
    return Check(name=name, passed=figure >= bound, figure=figure, bound=f"≥ {bound:g}", note=note)


def _at_most(name: str, figure: float, bound: float, note: str) -> Check:
    return Check(name=name, passed=figure <= bound, figure=figure, bound=f"≤ {bound:g}", note=note)
