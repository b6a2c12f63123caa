"""`headrace top`: one picture of a platform as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from services.console.insight.pulse import Beating, Now, ServiceNow, Steps
from shared.blame.report import nearest_rank
from shared.messages import (
    STAGES,
    EngineHeartbeat,
    GatewayHeartbeat,
    Outcome,
    TracerHeartbeat,
)
from shared.quantities import count, duration, percent

MAX_STAGES = 6
"""Of each service the largest ones are named…"""
MIN_SHARE = 0.005
"""… if they are more than nothing."""
LEVELS = ("", "fewer traces", "failures only")
"""By `TracerHeartbeat.level`."""

SERVICE_HEAD = (
    f"{'SERVICE':<20}{'REQ/S':>7}{'RUN':>6}{'WAIT':>6}{'FIRST p50':>11}{'p99':>9}{'TOKEN p50':>11}{'p99':>9}"
    f"{'WHOLE p50':>11}{'p99':>9}  NOT FINISHED"
)
ENGINE_HEAD = (
    f"{'ENGINE':<20}{'SERVICE':<16}{'STATE':<12}{'RUN':>5}{'WAIT':>6}{'STEPS/S':>9}{'BATCH':>7}{'TOK/S':>8}{'PROMPT/S':>10}"
    f"{'HELD UP':>9}{'LONGEST':>10}  BY, MODE"
)
GATEWAY_HEAD = f"{'GATEWAY':<20}{'URL':<32}{'STREAMS':>8}{'QUEUED':>8}{'ENGINES':>9}"
TRACER_HEAD = f"{'TRACER':<20}{'METRICS':<32}{'SEEN':>10}{'KEPT':>8}{'EXPORTED':>10}{'DROPPED':>9}"


def picture(now: Now, title: str) -> str:
    """Return the whole picture."""
    lines = [f"{title}  last {now.span_s:.0f} s", "", SERVICE_HEAD]
    for service in now.services:
        lines += _service(service, now)
    lines += [] if now.services else ["  no service was heard of"]
    lines += ["", ENGINE_HEAD, *(_engine(one, steps) for one, steps in now.engines)]
    lines += [] if now.engines else ["  none was heard"]
    lines += ["", GATEWAY_HEAD, *(_gateway(one) for one in now.gateways)]
    lines += [] if now.gateways else ["  none was heard"]
    if now.tracers:
        lines += ["", TRACER_HEAD, *(_tracer(one) for one in now.tracers)]
    return "\n".join(lines)


def _service(one: ServiceNow, now: Now) -> list[str]:
    beats = [
        beating.beat
        for beating, _ in now.engines
        if beating.beat.service == one.service and not beating.is_silent
    ]
    others = [f"{n} {how}" for how, n in one.outcomes.items() if how is not Outcome.FINISHED and n]
    times = "".join(
        f"{_at(values, 0.5):>11}{_at(values, 0.99):>9}"
        for values in (one.first_us, one.token_us, one.wall_us)
    )
    line = (
        f"{one.service:<20}{one.per_s:>7.1f}{sum(b.running for b in beats):>6}{sum(b.waiting for b in beats):>6}"
        f"{times}  {', '.join(others)}"
    )
    stages = _stages(one.us)
    return [line.rstrip(), *([f"  {stages}"] if stages else [])]


def _at(ordered: Sequence[float], share: float) -> str:
    return duration(ordered[nearest_rank(len(ordered), share)]) if ordered else "-"


def _stages(us: list[int]) -> str:
    """Return `decode 71%, decode_wait 12% …`."""
    total = sum(us)
    if not total:
        return ""
    largest = sorted(zip(us, STAGES, strict=True), key=lambda one: -one[0])[:MAX_STAGES]
    return ", ".join(
        f"{stage} {percent(part / total)}" for part, stage in largest if part / total >= MIN_SHARE
    )


def _state(one: Beating[EngineHeartbeat]) -> str:
    return f"silent {one.silent_s:.0f} s" if one.is_silent else one.beat.state


def _engine(one: Beating[EngineHeartbeat], steps: Steps) -> str:
    beat = one.beat
    notes = [str(steps.longest_by)] if steps.longest_by else []
    notes += [steps.mode] if steps.mode else []
    notes += [f"{steps.preemptions} preempted"] if steps.preemptions else []
    notes += [beat.reason] if beat.reason else []
    return (
        f"{beat.name or beat.engine:<20}{beat.service:<16}{_state(one):<12}{beat.running:>5}{beat.waiting:>6}"
        f"{steps.steps_per_s:>9.1f}{count(steps.batch):>7}{count(steps.tokens_per_s):>8}{count(steps.prefill_per_s):>10}"
        f"{percent(steps.wait_share):>9}{duration(steps.longest_us) if steps.longest_us else '-':>10}  {', '.join(notes)}"
    ).rstrip()


def _gateway(one: Beating[GatewayHeartbeat]) -> str:
    beat = one.beat
    silent = f"  silent {one.silent_s:.0f} s" if one.is_silent else ""
    return f"{beat.gateway:<20}{beat.url:<32}{beat.open_streams:>8}{beat.queued:>8}{beat.engines:>9}{silent}"


def _tracer(one: Beating[TracerHeartbeat]) -> str:
    beat = one.beat
    notes = [f"silent {one.silent_s:.0f} s"] if one.is_silent else []
    notes += [LEVELS[min(beat.level, len(LEVELS) - 1)]] if beat.level else []
    notes += [f"may have missed messages {beat.missed} times"] if beat.missed else []
    return (
        f"{beat.tracer:<20}{beat.url:<32}{beat.ledgers:>10}{beat.kept:>8}{beat.exported:>10}{beat.dropped:>9}"
        f"  {', '.join(notes)}"
    ).rstrip()
