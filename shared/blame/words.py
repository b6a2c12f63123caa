"""The blame of a window in a few sentences. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from shared.blame.groups import Group
from shared.blame.report import Blame, Part, Quantile
from shared.blame.skew import Skew, Trait
from shared.messages import STAGES, Outcome, Stage
from shared.quantities import count, duration, enumerated, percent, several

DECODE = STAGES.index(Stage.DECODE)
DECODE_WAIT = STAGES.index(Stage.DECODE_WAIT)
FEW = 20
"""With fewer requests a quantile is one request's own story."""
MAIN_SHARE = 0.6
"""A stage with this share of a difference is named alone."""
SECOND_SHARE = 0.15
CLOSE = 1.1
"""A p99 within a tenth of the p50 needs no explanation."""
LONGER = 1.25
"""Answers or prompts that are longer by a quarter are the reason given; else it is the time for each token."""
Reason = Callable[[Group, Group | None], str]
"""From the slow group and the usual one, if known, to what was different."""
OUTCOME_WORDS = {
    Outcome.LEFT: "left by their clients",
    Outcome.REFUSED: "refused",
    Outcome.EXPIRED: "expired",
    Outcome.INVALID: "invalid",
    Outcome.FAILED: "failed",
    Outcome.STOPPED: "stopped with their gateway",
}


def sentences(blame: Blame, names: Mapping[str, str] | None = None) -> list[str]:
    """Return what an operator is told, the most important first; never empty. `names`: what people call engines, by id."""
    if not blame.requests:
        return ["No request ended in this window."]
    said = [_few(blame), *_wall(blame), _compute(blame)]
    said += [_skew(skew, names or {}) for skew in blame.skews[:2]]
    said += [_first_token(blame), _unfinished(blame)]
    return [one for one in said if one]


def _few(blame: Blame) -> str:
    if not blame.finished:
        return "No request finished."
    if blame.finished < FEW:
        return f"Only {several(blame.finished, 'request')} finished: too few to speak of a p99, read it as an example."
    return ""


def _wall(blame: Blame) -> list[str]:
    if not blame.wall:
        return []
    median, last = blame.wall[0], blame.wall[-1]
    head = f"{last.name} is {duration(last.us)}, {median.name} {duration(median.us)}"
    if not last.worst or last.us <= median.us * CLOSE:
        return [f"{head}: no request is much slower than the usual one."]
    said = [f"{head}; {_explained(last, median.around)}."]
    if last.around.held_up and last.worst[0].stage is Stage.DECODE_WAIT:
        said.append(_blocker(last.around, blame))
    return said


def _explained(near: Quantile, median: Group) -> str:
    """Return `78% of the difference is decode_wait: …`."""
    first, *others = near.worst
    text = f"{percent(first.share)} of the difference is {first.stage}"
    if first.share < MAIN_SHARE and others and others[0].share >= SECOND_SHARE:
        text += f", {percent(others[0].share)} {others[0].stage}"
    reason = because(first.stage, near.around, median)
    return f"{text}: {reason}" if reason else text


def because(stage: Stage, slow: Group, usual: Group | None) -> str:
    """Return what a group spent so much time on in a stage, compared with the usual one if there is one; empty where nothing tells."""
    return REASONS[stage](slow, usual)


def _beside(usual_tokens: float | None) -> str:
    return f", {count(usual_tokens)} around the median" if usual_tokens is not None else ""


def _decode(slow: Group, usual: Group | None) -> str:
    tokens = f"{count(slow.completion_tokens)} tokens an answer"
    if usual is None:
        return f"{tokens}, {_pace(slow)}"
    if slow.completion_tokens > LONGER * usual.completion_tokens:
        return f"{tokens}{_beside(usual.completion_tokens)}"
    if _token_us(slow) > LONGER * _token_us(usual):
        return f"{_pace(slow)}, {_pace(usual)} around the median"
    return f"{tokens}, {_pace(slow)}"


def _token_us(some: Group) -> float:
    return some.us[DECODE] / max(1.0, some.completion_tokens)


def _pace(some: Group) -> str:
    return f"{duration(_token_us(some))} a token in batches of {count(some.batch_size)}"


def _decode_wait(slow: Group, _: Group | None) -> str:
    of = f"of {several(slow.requests, 'slow request')}"
    reasons = []
    if slow.held_up:
        reasons.append(f"{slow.held_up} {of} were held up by prefills of others")
    if slow.preempted:
        again = f", {count(slow.recomputed_tokens)} tokens were computed again"
        reasons.append(f"{slow.preempted} {of} were preempted{again}")
    return "; ".join(reasons)


def _prefill(slow: Group, usual: Group | None) -> str:
    return f"{count(slow.prefill_tokens)} prompt tokens computed{_beside(usual.prefill_tokens if usual else None)}"


def _tokenize(slow: Group, usual: Group | None) -> str:
    return f"{count(slow.prompt_tokens)} prompt tokens{_beside(usual.prompt_tokens if usual else None)}"


def _route(slow: Group, _: Group | None) -> str:
    if not slow.moved:
        return "finding and reaching an engine"
    return f"{slow.moved} of {several(slow.requests, 'slow request')} lost an engine on the way"


def _always(text: str) -> Reason:
    return lambda slow, usual: text


REASONS: dict[Stage, Reason] = {
    Stage.RECEIVE: _always("reading the request: a slow client or a large body"),
    Stage.ADMIT: _always("waiting at the gateway until the engines had room"),
    Stage.ROUTE: _route,
    Stage.TOKENIZE: _tokenize,
    Stage.QUEUE: _always("waiting in the engine for a turn"),
    Stage.KV_LOAD: _always("waiting for KV blocks of a lower tier"),
    Stage.PREFILL: _prefill,
    Stage.DECODE: _decode,
    Stage.DECODE_WAIT: _decode_wait,
    Stage.KV_SYNC: _always("waiting until KV blocks were saved"),
    Stage.OUTPUT_PARSE: _always("work on the text after the last token"),
    Stage.DELIVER: _always("handing the answer over: a client that reads slowly"),
}


def _blocker(slow: Group, blame: Blame) -> str:
    worst = slow.blockers[0]
    tokens = blame.prompt_tokens.get(worst.request, 0)
    prompt = f" with a prompt of {count(tokens)} tokens" if tokens else ""
    waited_us = slow.us[DECODE_WAIT] * slow.requests
    head = "Most of that by" if worst.us > waited_us / 2 else "The worst of them was"
    return f"{head} {worst.request}{prompt}: {duration(worst.us)} in all."


def _compute(blame: Blame) -> str:
    if not blame.wall:
        return ""
    usual: list[Part] = blame.wall[0].worst
    if not usual:
        return ""
    named = [f"{percent(p.share)} {p.stage}" for p in usual[:2] if p.share >= SECOND_SHARE]
    return (
        f"The usual request is {enumerated(named)}; "
        f"{percent(blame.non_compute_share)} of all time is neither prefill nor decode."
    )


def _skew(skew: Skew, names: Mapping[str, str]) -> str:
    match skew.trait:
        case Trait.ENGINE:
            name = names.get(skew.value, "")
            who = f"Engine {name} ({skew.value})" if name else f"Engine {skew.value}"
        case Trait.VERSION:
            who = f"Version {skew.value}"
        case Trait.CLASS:
            who = f"Class {skew.value}"
        case Trait.PROMPT:
            who = f"Prompts of {skew.value} tokens"
        case _:
            assert_never(skew.trait)
    verb = "make up" if skew.trait is Trait.PROMPT else "has"
    return f"{who} {verb} {skew.slow} of the {skew.of_slow} slowest requests and {percent(skew.share_of_all)} of all."


def _first_token(blame: Blame) -> str:
    if not blame.first_token or blame.finished < FEW:
        return ""
    median, last = blame.first_token[0], blame.first_token[-1]
    head = f"To the first token p99 is {duration(last.us)}, p50 {duration(median.us)}"
    if not last.worst or last.us <= median.us * CLOSE:
        return f"{head}."
    worst = last.worst[0]
    return f"{head}; {percent(worst.share)} of the difference is {worst.stage}."


def _unfinished(blame: Blame) -> str:
    others = {how: n for how, n in blame.outcomes.items() if how is not Outcome.FINISHED}
    if not others or blame.unfinished is None:
        return ""
    named = enumerated([f"{n:,} {OUTCOME_WORDS[how]}" for how, n in others.items()])
    text = f"{several(sum(others.values()), 'request')} did not finish ({named})"
    shares = blame.unfinished.us
    total = sum(shares)
    if not total:
        return f"{text}."
    worst = max(range(len(shares)), key=shares.__getitem__)
    return f"{text}; {percent(shares[worst] / total)} of their time was {STAGES[worst]}, {duration(total)} each."
