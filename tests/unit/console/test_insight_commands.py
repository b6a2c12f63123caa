"""The four commands on the memory bus, in virtual time, with a scripted publisher in place of gateways and engines."""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
from collections.abc import Awaitable, Callable

import pytest

from services.console.cli import parser
from services.console.insight import commands
from services.console.insight.desk import Desk
from shared.clock import unix_time_s
from shared.errors import HeadraceError, NoHistory, UserError
from shared.history import History
from shared.messages import (
    ChoiceRecord,
    EngineHeartbeat,
    EngineState,
    GatewayHeartbeat,
    Ledger,
    LedgerBatch,
    Outcome,
    StepDetail,
    StepQuery,
    TokenRun,
)
from shared.typedbus import TypedBus
from tests.support.buses import MemoryWorld, World
from tests.support.requests_seen import ENGINE, GATEWAY, SERVICE, batch, blocked, ledger

Play = Callable[[TypedBus], Awaitable[None]]

USUAL = [ledger(n, completion_tokens=3) for n in range(60)]
BLOCKER = ledger(70, prompt_tokens=7012)
STALLED = ledger(
    99,
    parts={"prefill": 20, "decode": 80, "decode_wait": 2300},
    completion_tokens=3,
    blocked_by=[blocked(70, 2300)],
    label="order-17",
)
BEAT = EngineHeartbeat(
    engine=ENGINE,
    service=SERVICE,
    beat=1,
    state=EngineState.READY,
    backend="fake",
    name="engine-0",
    running=2,
)


async def beating(bus: TypedBus) -> None:
    bus.publish(BEAT)


async def served(bus: TypedBus) -> None:
    """A minute of a service: sixty usual requests, one that was held up, and beats."""
    history = await History.open(bus)
    await history.ensure(LedgerBatch)
    for start in range(0, 60, 20):
        bus.publish(batch(*USUAL[start : start + 20]))
    bus.publish(batch(BLOCKER, STALLED))
    await bus.flush(timeout_s=5)


def options(line: str) -> argparse.Namespace:
    return parser().parse_args(line.split())


def run(line: str, *plays: Play, live: Play | None = None) -> int:
    """Carry out a command after `plays`, while `live` is played and an engine beats; return its exit code."""
    chosen = options(line)
    reading = getattr(commands, chosen.command)
    codes: list[int] = []

    async def scenario(world: World) -> None:
        bus, console = await world.bus("gateway"), await world.bus("console")
        for play in plays:
            await play(bus)
        desk = await Desk.open(console)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(reading(desk, chosen))
            await asyncio.sleep(0.1)
            await beating(bus)
            if live is not None:
                await live(bus)
                await asyncio.sleep(2)
                task.cancel()
            else:
                codes.append(await task)

    try:
        MemoryWorld().run(scenario)
    except BaseExceptionGroup as failed:
        first: BaseException = failed
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return codes[0] if codes else -1


# --- trace


@pytest.mark.parametrize("wanted", [STALLED.request, STALLED.request[9:], "order-17"])
def test_trace_finds_a_request_and_explains_it(capsys, wanted):
    code = run(f"trace {wanted}", served)

    shown = capsys.readouterr().out
    assert 0 == code
    assert f"{STALLED.request}  finished, HTTP 200" in shown
    assert f"engine engine-0 ({ENGINE})" in shown
    assert "decode_wait      2.3 s     96%     2.4 s" in shown
    assert (
        f"held up by the prefill of {BLOCKER.request} for 2.3 s (class default, a prompt of 7,012 tokens)"
        in shown
    )
    assert "Unusual: 2.3 s of decode_wait; 95 of 100 requests have none of it." in shown


def test_trace_as_json_holds_the_request_its_blockers_and_the_blame(capsys):
    run(f"trace {STALLED.request} --json", served)

    document = json.loads(capsys.readouterr().out)
    assert STALLED.request == document["request"]["request"]
    assert 2300.0 == document["request"]["stages_ms"]["decode_wait"]
    assert {BLOCKER.request: 2300.0} == document["request"]["blocked_by_ms"]
    assert [BLOCKER.request] == [one["request"] for one in document["blockers"]]
    assert "Most of it, 96%, was decode_wait (2.3 s)." == document["blame"][0]


def test_trace_of_an_unknown_id_says_how_far_it_looked():
    with pytest.raises(HeadraceError, match="no request 'nobody' ended in the last 60 minutes"):
        run("trace nobody", served)


def test_trace_of_an_id_that_may_mean_many_lists_some():
    with pytest.raises(UserError, match=r"'chatcmpl-' may mean .* and 15 others or more"):
        run("trace chatcmpl-", served)


async def remembering(bus: TypedBus) -> None:
    async def answer(query: StepQuery) -> StepDetail:
        return StepDetail(
            engine=query.engine,
            request=query.request,
            is_known=query.request == STALLED.request,
            first_step=5,
            last_step=7,
            head_ms=struct.pack("<3e", 20, 25, 30),
            head_batch=struct.pack("<3H", 4, 3, 2),
            runs=[[TokenRun(token=0, step=5)]],
        )

    await bus.serve(StepQuery, answer, engine=ENGINE)


def test_trace_of_a_token_asks_the_engine(capsys):
    code = run(f"trace {STALLED.request} --token 2", served, remembering)

    shown = capsys.readouterr().out.splitlines()
    assert 0 == code
    assert (
        "Token 2 was made in step 6, 45 ms after the first step began: which took 25 ms with a batch of 3."
        == shown[-1]
    )


@pytest.mark.parametrize(
    ("wanted", "token", "plays", "why"),
    [
        (STALLED, 2, (served,), f"engine {ENGINE} is gone"),
        (STALLED, 4, (served, remembering), "the answer has 3 tokens, so none has the number 4"),
        (USUAL[3], 1, (served, remembering), "no longer remembers the steps"),
    ],
)
def test_a_token_that_nobody_can_tell_of_is_said_to_be_so(wanted: Ledger, token, plays, why):
    with pytest.raises(HeadraceError, match=why):
        run(f"trace {wanted.request} --token {token}", *plays)


# --- logs


def test_logs_have_a_line_for_each_of_the_last_requests_in_their_order(capsys):
    code = run(f"logs {SERVICE} --tail 3", served)

    lines = capsys.readouterr().out.splitlines()
    assert 0 == code
    assert lines[0].startswith("ENDED (UTC)")
    assert [USUAL[59].request, BLOCKER.request, STALLED.request] == [
        line.split()[1] for line in lines[1:]
    ]
    assert ["decode_wait", "2.3", "s", "96%", "engine-0"] == lines[-1].split()[-5:]


@pytest.mark.parametrize(
    "how",
    ["--slow", "--slower-than 2s", "--stage decode_wait", "--stage decode_wait --slower-than 2s"],
)
def test_logs_leave_out_what_is_not_wanted(capsys, how):
    code = run(f"logs {SERVICE} {how} --json", served)

    assert 0 == code
    assert [STALLED.request] == [
        json.loads(line)["request"] for line in capsys.readouterr().out.splitlines()
    ]


def test_logs_that_find_nothing_say_what_was_looked_for(capsys):
    code = run(f"logs {SERVICE} --stage kv_load", served)

    shown = capsys.readouterr()
    assert (1, "") == (code, shown.out)
    assert f"no request of {SERVICE} with much kv_load ended since " in shown.err


def test_logs_follow_what_ends_from_now_on_and_repeat_nothing(capsys):
    late = ledger(500, outcome=Outcome.FAILED, status=502, code="engine_failed")

    async def live(bus: TypedBus) -> None:
        await asyncio.sleep(1)
        bus.publish(batch(STALLED, late))
        await bus.flush(timeout_s=5)

    run(f"logs {SERVICE} --tail 2 --follow", served, live=live)

    lines = capsys.readouterr().out.splitlines()
    assert [BLOCKER.request, STALLED.request, late.request] == [
        line.split()[1] for line in lines[1:]
    ]
    assert lines[-1].endswith("engine_failed")


# --- blame


def test_blame_prints_the_table_and_the_words(capsys):
    code = run(f"blame {SERVICE} --window 1h", served)

    shown = capsys.readouterr().out
    assert 0 == code
    assert shown.startswith(f"{SERVICE}, last 60 min: 62 requests\n")
    assert "p99 is 2.4 s, p50 100 ms; 100% of the difference is decode_wait" in shown
    assert (
        f"Most of that by {BLOCKER.request} with a prompt of 7,012 tokens: 2.3 s in all." in shown
    )


def test_blame_as_json_holds_figures_and_words(capsys):
    run(f"blame {SERVICE} --json", served)

    document = json.loads(capsys.readouterr().out)
    assert (62, 62, 300.0) == (
        document["blame"]["requests"],
        document["blame"]["finished"],
        document["window_s"],
    )
    assert [0.5, 0.95, 0.99] == [one["share"] for one in document["blame"]["wall"]]
    assert document["words"][0].startswith("p99 is 2.4 s")


@pytest.mark.parametrize("command", ["blame", "logs"])
def test_a_service_that_is_there_without_requests_is_no_error_of_the_caller(capsys, command):
    async def silent(bus: TypedBus) -> None:
        await (await History.open(bus)).ensure(LedgerBatch)

    code = run(f"{command} {SERVICE}", silent)

    assert 1 == code
    assert f"no request of {SERVICE} ended since " in capsys.readouterr().err


@pytest.mark.parametrize("command", ["blame", "logs"])
def test_an_unknown_service_is_answered_with_the_known_ones(command):
    async def another(bus: TypedBus) -> None:
        bus.publish(batch(ledger(1), service="other"))

    with pytest.raises(UserError, match="no service 'tinny'") as refused:
        run(f"{command} tinny", served, another)

    assert f"known: other, {SERVICE}" == refused.value.hint


@pytest.mark.parametrize("line", ["trace x", f"blame {SERVICE}", f"logs {SERVICE}"])
def test_a_bus_that_keeps_nothing_is_named(line):
    with pytest.raises(NoHistory):
        run(line)


# --- top


def test_top_shows_what_has_just_ended_and_who_beats(capsys):
    async def now(bus: TypedBus) -> None:
        began = (unix_time_s() - 1) * 1_000_000
        bus.publish(batch(*(ledger(n, began_unix_us=began) for n in range(30))))
        await bus.flush(timeout_s=5)

    async def ensured(bus: TypedBus) -> None:
        await (await History.open(bus)).ensure(LedgerBatch)

    code = run("top --once", ensured, now)

    shown = capsys.readouterr().out
    assert 0 == code
    assert 1 == shown.count("headrace top default")
    assert ["tiny", "3.0", "2", "0", "20", "ms", "20", "ms", "11", "ms"] == next(
        line.split()[:10] for line in shown.splitlines() if line.startswith("tiny")
    )
    assert "engine-0            tiny            ready" in shown


def test_top_goes_on_with_what_ends_while_it_watches(capsys):
    async def live(bus: TypedBus) -> None:
        for number in range(3):
            await asyncio.sleep(0.5)
            bus.publish(
                batch(ledger(number, choices=[ChoiceRecord(index=0, tokens=8, finish="stop")]))
            )
            bus.publish(GatewayHeartbeat(gateway=GATEWAY, beat=number))

    run("top --interval 0.5", live=live)

    pictures = capsys.readouterr().out.split("headrace top default")[1:]
    assert len(pictures) > 3
    assert "none was heard" in pictures[0]
    rates = [
        line.split()[1] for one in pictures for line in one.splitlines() if line.startswith("tiny")
    ]
    assert "1.0" == rates[-1]
    assert GATEWAY in pictures[-1]
