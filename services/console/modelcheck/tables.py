"""What `validate-model` and `debug-logits` show to people. Pure: values in, text out."""

from __future__ import annotations

from services.console.modelcheck.deviation import Comparison, Place
from services.console.modelcheck.judge import Verdict
from services.console.plain import one_line
from shared.models.probe import Option

TOKEN_CHARS = 18


def verdict(told: Verdict) -> str:
    """Return the checks and figures of a model."""
    lines = [f"{'CHECK':<20}{'RESULT':<8}{'FIGURE':>10}  {'BOUND':<10}NOTE"]
    for check in told.checks:
        figure = "–" if check.figure is None else number(check.figure)
        result = "PASS" if check.passed else "FAIL"
        row = f"{check.name:<20}{result:<8}{figure:>10}  {check.bound:<10}{check.note}"
        lines.append(row.rstrip())
    lines += [
        f"{figure.name:<20}{'':<8}{number(figure.value):>10}  {figure.unit}"
        for figure in told.figures
    ]
    failed = [check.name for check in told.checks if not check.passed]
    end = f"FAIL: {', '.join(failed)}" if failed else "PASS"
    return "\n".join([*lines, "", f"{told.model}: {end}"])


def number(value: float) -> str:
    """Return a figure with as many places as it needs: `0.0072`, `0.93`, `13.4`, `134,809`."""
    if value != 0 and abs(value) < 0.01:  # noqa: PLR2004 - two places would say nothing
        return f"{value:.4f}"
    if abs(value) < 10:  # noqa: PLR2004 - as above
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:,.0f}"  # noqa: PLR2004 - as above


def comparison(told: Comparison, *, model: str, reference: str, top: int) -> str:
    """Return the positions with their likeliest tokens, the reference's beside them."""
    lines: list[str] = []
    for place in told.places:
        lines += ["", *_place(place, reference=reference, top=top)]
    if not reference:
        return "\n".join(lines[1:])
    lines += ["", f"left: {model}, right: {reference}"]
    if told.other_tokens:
        lines.append(f"the tokenizers differ: token {told.other_tokens[0]} is another text there")
    largest = told.largest
    if largest is not None:
        lines.append(
            f"largest deviation {number(largest.deviation)} nat at position {largest.number} ({shown(largest.token.text)})"
        )
    lines.append(
        "no position deviates by more than the threshold"
        if told.begins_at is None
        else f"deviates by more than {told.threshold:g} nat from position {told.begins_at} on"
    )
    return "\n".join(lines)


def _place(place: Place, *, reference: str, top: int) -> list[str]:
    head = (
        f"{place.number:>4}  {shown(place.token.text):<{TOKEN_CHARS}} {place.token.logprob:>9.3f}"
    )
    if not reference:
        return [head, *(f"      {_option(option)}" for option in place.left[:top])]
    head += f"   Δ {number(place.deviation)}   KL ≥ {number(place.kl)}"
    rows = [
        f"      {_option(place.left[n] if n < len(place.left) else None)}    {_option(place.right[n] if n < len(place.right) else None)}"
        for n in range(top)
    ]
    return [head, *(row.rstrip() for row in rows if row.strip())]


def _option(option: Option | None) -> str:
    if option is None:
        return " " * (TOKEN_CHARS + 10)
    return f"{shown(option.text):<{TOKEN_CHARS}} {option.logprob:>9.3f}"


def shown(text: str) -> str:
    """Return a token as it can stand in a table."""
    quoted = one_line(repr(text))
    return quoted if len(quoted) <= TOKEN_CHARS else f"{quoted[: TOKEN_CHARS - 1]}…"
