"""What a black box says in words."""

from __future__ import annotations

import pytest

from shared.blackbox.layout import Box, Identity, Note, ProcessMemory, Request, Second, Step, Table
from shared.blackbox.report import GIB, Ending, Report, report
from shared.ids import EngineId, RequestId, ServiceName

IDENTITY = Identity(engine=EngineId("e1"), service=ServiceName("m"), began_unix_s=900.0)
SECONDS = [
    Second(
        unix_s=900.0 + n,
        state="ready",
        step=10 * n,
        running=2,
        free_blocks=50,
        total_blocks=100,
        processes=[ProcessMemory(1, "front", GIB), ProcessMemory(2, "core", GIB + n * (GIB >> 7))],
        group_bytes=3 * GIB,
        group_limit_bytes=4 * GIB,
        oom_kills=5,
    )
    for n in range(101)
]
STEPS = [Step(number=1000 + n, unix_s=1000.0 + n / 10, us=50_000, free_blocks=7) for n in range(3)]
TABLE = Table(
    unix_s=1000.0, requests=[Request(request=RequestId("r1"), stage="decode")], left_out=2
)
UNSEEN = Ending()
BOX = Box(identity=IDENTITY, steps=STEPS, seconds=SECONDS, table=TABLE)


def said(box: Box = BOX, ending: Ending = UNSEEN) -> Report:
    found = report(box, ending)
    assert found is not None
    return found


def test_figures_are_those_of_the_last_records():
    told = said(ending=Ending(how="signal SIGKILL", unix_s=1001.0, log="/l"))

    assert (1002, 7, 100, "/l") == (told.last_step, told.free_blocks, told.total_blocks, told.log)
    assert pytest.approx(0.75) == told.step_age_s
    assert SECONDS[-1].rss_bytes == told.rss_bytes
    assert pytest.approx(60 * (GIB >> 7)) == told.rss_change_bytes
    assert "signal SIGKILL" == told.cause
    assert told.summary.startswith(
        "last step 1002, 0.75 s before the end; 3 requests under way at its last look;"
    )
    assert told.summary.endswith(
        "7 of 100 blocks free; 2.78 GiB resident, +0.47 GiB in its last minute"
    )


def test_memory_is_that_before_the_core_was_gone():
    without_core = Second(unix_s=1002.0, processes=[ProcessMemory(1, "front", GIB)])
    box = Box(identity=IDENTITY, seconds=[*SECONDS, without_core])

    assert SECONDS[-1].rss_bytes == said(box).rss_bytes
    assert said(box).rss_change_bytes > 0


def test_an_end_that_nobody_saw_is_that_of_the_last_record():
    told = said()

    assert pytest.approx(1000.25) == told.ended_unix_s == told.last_unix_s
    assert "nobody saw how it ended" == told.cause


@pytest.mark.parametrize(("oom_kills", "is_told"), [(6, True), (5, False), (0, False), (-1, False)])
def test_lack_of_memory_is_told_where_the_kernel_counted_a_kill_since(oom_kills, is_told):
    told = said(ending=Ending(how="signal SIGKILL", oom_kills=oom_kills))

    assert is_told == ("OOM" in told.cause)


def test_without_a_count_before_there_is_no_word_of_lack_of_memory():
    unknown = Box(identity=IDENTITY, seconds=[Second(unix_s=1000.0, oom_kills=-1)])

    assert "signal SIGKILL" == said(unknown, Ending(how="signal SIGKILL", oom_kills=1)).cause


def test_a_full_memory_group_is_named():
    full = Box(
        identity=IDENTITY,
        seconds=[Second(unix_s=1000.0, group_bytes=98 * GIB, group_limit_bytes=100 * GIB)],
    )

    assert "at 98% of its limit" in said(full).cause


def test_a_hung_engine_is_named_and_an_idle_one_is_not():
    def at(age_s: float, running: int) -> str:
        last = Second(unix_s=1000.0, step=9, step_age_s=age_s, running=running)
        return said(Box(identity=IDENTITY, seconds=[last])).cause

    assert "no step for 12.0 s" in at(12.0, 3)
    assert "no step" not in at(12.0, 0)
    assert "no step" not in at(1.0, 3)


def test_the_engines_own_reason_is_part_of_the_cause():
    notes = [Note(unix_s=1.0, what="ready"), Note(unix_s=2.0, what="failed", why="the core died")]

    cause = said(Box(identity=IDENTITY, notes=notes), Ending(how="exit code 2")).cause

    assert "exit code 2; the core died" == cause


def test_a_box_without_steps_and_seconds_says_so():
    told = said(Box(identity=IDENTITY))

    assert "no step; 0 requests under way at its last look" == told.summary
    assert 900.0 == told.ended_unix_s


def test_a_box_that_does_not_say_whose_it_is_says_nothing():
    assert report(Box(steps=STEPS), Ending()) is None
