"""Why one request took its time, in sentences: what was longest, who held it up, what is unusual. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from services.console.insight.found import Found
from services.console.insight.usual import Usual
from services.console.insight.waterfall import Names, engine_name
from shared.blame import because
from shared.blame.groups import group
from shared.ids import RequestId
from shared.messages import STAGES, Ledger, Outcome, Stage
from shared.quantities import count, duration, enumerated, percent, several

MAX_UNUSUAL = 2
HELD_SHARE = 0.01
"""Blockers that held a request up for less than this much of its time are not worth a sentence."""
WAYS = {"resume": "went on", "replay": "was begun again and followed", "": "was begun again"}
"""By `Attempt.way`."""
ENDS = {
    Outcome.FINISHED: "",
    Outcome.LEFT: "The client went away or cancelled.",
    Outcome.REFUSED: "It was not admitted.",
    Outcome.EXPIRED: "Its deadline passed.",
    Outcome.INVALID: "The request itself was at fault.",
    Outcome.FAILED: "Engines failed, and no other could take over.",
    Outcome.STOPPED: "The gateway was stopped before it was done.",
}

Blockers = Mapping[RequestId, Ledger]
"""The requests that held others up, where their own ledgers are known."""


def story(found: Found, usual: Usual | None, blockers: Blockers, names: Names) -> list[str]:
    """Return the sentences, the most telling first."""
    one = found.ledger
    said = [ENDS[one.outcome], _longest(one, usual), _held_up(one, blockers), _preempted(one)]
    said += [_without_blocks(one), *_unusual(one, usual), *_moves(one, names), _mode(one)]
    if one.is_estimated:
        said.append("Part of the engine's stages was seen from outside only, by the gateway.")
    return [sentence for sentence in said if sentence]


def _longest(one: Ledger, usual: Usual | None) -> str:
    if not one.wall_us:
        return ""
    place = max(range(len(STAGES)), key=one.us.__getitem__)
    stage = STAGES[place]
    head = f"Most of it, {percent(one.us[place] / one.wall_us)}, was {stage} ({duration(one.us[place])})"
    if stage in (Stage.DECODE_WAIT, Stage.ROUTE):  # told of by sentences of their own
        return f"{head}."
    alone = group([one])
    reason = because(stage, alone, usual.median if usual is not None else None)
    return f"{head}: {reason}." if reason else f"{head}."


def _held_up(one: Ledger, blockers: Blockers) -> str:
    who = [
        f"{blocker.request} for {duration(blocker.us)}{_prompt(blockers.get(blocker.request))}"
        for blocker in one.blocked_by
        if blocker.us >= HELD_SHARE * one.wall_us
    ]
    if not who:
        return ""
    return f"Its decoding was held up by the prefill of {enumerated(who)}."


def _prompt(blocker: Ledger | None) -> str:
    if blocker is None:
        return ""
    # An answer that went on at another engine has its words so far computed there as well.
    tokens = max(blocker.prompt_tokens, blocker.prefill_tokens)
    again = (
        f", {count(blocker.recomputed_tokens)} computed again" if blocker.recomputed_tokens else ""
    )
    return f" (class {blocker.priority}, a prompt of {count(tokens)} tokens{again})"


def _without_blocks(one: Ledger) -> str:
    if one.blocks_us < HELD_SHARE * one.wall_us or not one.blocks_us:
        return ""
    return f"It was queued for KV blocks for {duration(one.blocks_us)}: the pool was promised to others."


def _preempted(one: Ledger) -> str:
    if not one.preemptions:
        return ""
    often = "once" if one.preemptions == 1 else f"{one.preemptions} times"
    return f"It was preempted {often}: {several(one.recomputed_tokens, 'token')} had to be computed again."


def _unusual(one: Ledger, usual: Usual | None) -> list[str]:
    if usual is None:
        return []
    return [
        f"Unusual: {duration(one.us[STAGES.index(stage)])} of {stage}; 95 of 100 requests have {_at_most(high)}."
        for stage, high in usual.unusual(one)[:MAX_UNUSUAL]
    ]


def _at_most(us: int) -> str:
    return f"at most {duration(us)}" if us else "none of it"


def _moves(one: Ledger, names: Names) -> list[str]:
    if not one.attempts:
        return []
    lost = enumerated(
        [f"{engine_name(a.engine, names)} after {duration(a.us)} ({a.why})" for a in one.attempts]
    )
    way = WAYS.get(one.attempts[-1].way, "went on")
    went = (
        f"the answer {way} at {engine_name(one.engine, names)}"
        if one.engine
        else "no other took over"
    )
    return [f"It lost {lost}; {went}."]


def _mode(one: Ledger) -> str:
    if not one.mode_changes:
        return ""
    return f"The way of computing changed {several(one.mode_changes, 'time')}, last to {one.mode}: a fallback kernel may have been used."
