"""What `headrace kv` shows to people. Pure: messages in, text out."""

from __future__ import annotations

from shared.messages import (
    KvListing,
    KvNamespace,
    KvPurged,
    KvStats,
    KvVerified,
    MirrorPicture,
)
from shared.quantities import age, count, in_bytes, percent, several

MIRROR_HEAD = f"  {'MIRROR':<40} {'STATE':<12}{'VALUES':>10}{'FILES':>12}{'FREE':>12}{'READ/S':>12}{'WRITE/S':>12}{'DROPS':>7}"
SPACE_HEAD = (
    f"  {'NAMESPACE':<34}{'VALUES':>10}{'EACH':>10}{'USED':>12}{'ENGINES':>9}{'USED AGO':>18}  WHAT"
)


IDENTIFYING = ("model", "dtype", "vllm", "isa", "tp_size", "value_bytes")
"""What tells one namespace from another at a glance; `--json` has all that it is made of."""
MOST_CHARS = 20


def short(text: str) -> str:
    """Return the beginning of a long word."""
    return text if len(text) <= MOST_CHARS else f"{text[: MOST_CHARS - 1]}…"


def stats(told: KvStats) -> str:
    """Return all of one store."""
    beat = told.beat
    asked = beat.hits + beat.misses
    lines = [
        f"KV store {beat.store} on {beat.host}: {several(beat.values, 'value')}, "
        f"{in_bytes(beat.used_bytes)} of {in_bytes(beat.budget_bytes)}, {several(beat.engines, 'engine')}",
        f"  loads     {count(beat.hits)} values found of {count(asked)}"
        f"{f' ({percent(beat.hits / asked)})' if asked else ''}, {in_bytes(beat.loaded_bytes)}",
        f"  saves     {count(beat.saves)} values, {in_bytes(beat.saved_bytes)}; {count(beat.unsaved)} could not be kept",
        f"  evicted   {count(beat.evicted)}; broken {count(beat.corrupt)}",
        f"  waiting   {several(beat.waiting_loads, 'load')}, {several(beat.waiting_saves, 'save')}",
        "",
        MIRROR_HEAD,
        *map(_mirror, beat.mirrors),
    ]
    if told.namespaces:
        lines += ["", SPACE_HEAD, *map(_space, told.namespaces)]
    return "\n".join(lines)


def _mirror(one: MirrorPicture) -> str:
    state = "read only" if one.read_only else one.state
    rates = [
        in_bytes(rate) if rate else "-" for rate in (one.read_bytes_per_s, one.write_bytes_per_s)
    ]
    line = (
        f"  {one.folder:<40} {state:<12}{one.values:>10}{in_bytes(one.file_bytes):>12}{in_bytes(one.free_bytes):>12}"
        f"{rates[0]:>12}{rates[1]:>12}{one.drops:>7}"
    )
    return f"{line}\n    {one.trouble}: {one.reason}" if one.reason else line


def _space(one: KvNamespace) -> str:
    between = f"{age(one.newest_s)} – {age(one.oldest_s)}"
    told = ", ".join(f"{key} {short(one.told[key])}" for key in IDENTIFYING if one.told.get(key))
    return (
        f"  {one.namespace:<34}{one.values:>10}{in_bytes(one.value_bytes):>10}{in_bytes(one.used_bytes):>12}"
        f"{one.engines:>9}{between:>18}  {told}"
    ).rstrip()


def listing(namespace: str, told: KvListing, *, offset: int) -> str:
    """Return one page of a namespace."""
    lines = [f"namespace {namespace}: {several(told.total, 'value')}"]
    lines.append(f"{'KEY':<74}{'LAST USE':>12}{'USED':>8}{'MIRRORS':>9}")
    lines += [
        f"{one.key.hex():<74}{age(one.last_use_s) + ' ago':>12}{'twice' if one.used_twice else 'once':>8}{one.mirrors:>9}"
        for one in told.values
    ]
    left = told.total - offset - len(told.values)
    return "\n".join(
        [*lines, f"{count(left)} more: --offset {offset + len(told.values)}"] if left > 0 else lines
    )


def verified(told: KvVerified) -> str:
    """Return how far a verification is, or what it found."""
    found = f"{count(told.bad)} broken and deleted" if told.bad else "none broken"
    done = f"{count(told.checked)} of {count(told.total)} copies read, {found}"
    return f"{done}, {told.seconds:.0f} s" if told.running else f"{done} ({told.seconds:.1f} s)"


def purged(told: KvPurged) -> str:
    """Return what was deleted."""
    text = f"deleted {several(told.values, 'value')}, {in_bytes(told.used_bytes)} on each disk"
    if told.away:
        text += f"; {several(told.away, 'mirror')} out of service will delete theirs when back"
    return text
