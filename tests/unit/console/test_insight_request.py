"""One request as `headrace trace` shows it: found by its ids, drawn, explained; and the line that `headrace logs` has for it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.console.insight.found import Found, Search, told
from services.console.insight.lines import HEAD, Wanted, log_line
from services.console.insight.story import story
from services.console.insight.tracing import Surroundings
from services.console.insight.usual import usual_of
from services.console.insight.waterfall import BAR_CHARS, bar, counts, heading, waterfall
from shared.blame import LedgerWindow
from shared.messages import STAGES, Attempt, ChoiceRecord, Ledger, Outcome, Priority, Stage
from tests.support.requests_seen import (
    BEGAN_UNIX_US,
    ENGINE,
    GATEWAY,
    SERVICE,
    batch,
    blocked,
    ledger,
)

NAMES = {ENGINE: "engine-0"}
TRACE = bytes.fromhex("4bf92f3577b34da6a3ce929d0e0e4736")
STALLED = ledger(
    1,
    parts={
        "receive": 0.2,
        "admit": 0.04,
        "route": 1.6,
        "tokenize": 0.9,
        "queue": 12,
        "prefill": 85,
        "decode": 1600,
        "decode_wait": 2300,
        "output_parse": 0.1,
        "deliver": 0.4,
    },
    is_streamed=True,
    trace_id=TRACE,
    label="order-17",
    version="v3",
    ttft_us=101_000,
    prompt_tokens=120,
    cached_tokens=96,
    prefill_tokens=24,
    completion_tokens=128,
    drafted_tokens=40,
    accepted_tokens=30,
    preemptions=1,
    recomputed_tokens=90,
    first_step=812,
    last_step=940,
    batch_size=7.5,
    kv_blocks=17,
    mode="FLASH_ATTN/graph",
    blocked_by=[blocked(2, 2100), blocked(3, 0.1)],
)
BLOCKER = ledger(2, prompt_tokens=7012, priority=Priority.BATCH)


def found(one: Ledger = STALLED) -> Found:
    return Found(SERVICE, GATEWAY, one)


def usual(**changes: object):
    window = LedgerWindow()
    for n in range(100):
        window.add(ledger(n, **changes))
    return usual_of(window)


# --- which request an id means


@pytest.mark.parametrize(
    "wanted",
    [STALLED.request, STALLED.request[:-1], "0" * 23, "order-17", "order-1", TRACE.hex(), "4bf9"],
)
def test_an_id_or_its_beginning_finds_the_request(wanted):
    search = Search(wanted)

    over = search.look(batch(STALLED, ledger(0xABC)))

    assert (wanted == STALLED.request) == over
    assert STALLED in [one.ledger for one in search.candidates]
    assert [STALLED] == [one.ledger for one in search.candidates] or wanted == "0" * 23


def test_a_whole_label_beats_others_that_begin_with_it():
    search = Search("order-17")

    search.look(batch(ledger(5, label="order-170"), STALLED))

    assert [STALLED] == [one.ledger for one in search.candidates]


def test_a_trace_of_several_requests_names_them_all_and_twins_once():
    search = Search(TRACE.hex())

    search.look(batch(STALLED, ledger(5, trace_id=TRACE), STALLED))

    assert 2 == len(search.candidates)


def test_an_id_that_nobody_has_finds_nothing():
    search = Search("nobody")

    assert not search.look(batch(STALLED))
    assert [] == search.candidates


# --- the requests around it


def test_reading_ends_when_blockers_are_found_and_enough_is_compared():
    around = Surroundings(found(ledger(50, blocked_by=[blocked(2, 10)])), compared=3)

    over = [around.look(found(ledger(n))) for n in (9, 8, 7, 6, 2)]

    assert [False, False, False, False, True] == over
    assert [ledger(2).request] == list(around.blockers)
    assert 3 == around.window.seen


def test_reading_ends_where_nobody_can_have_held_it_up_any_more():
    late = ledger(50, began_unix_us=BEGAN_UNIX_US + 10_000_000, blocked_by=[blocked(2, 10)])
    around = Surroundings(found(late), compared=1)

    over = [
        around.look(found(ledger(n, began_unix_us=BEGAN_UNIX_US + began_us)))
        for n, began_us in ((9, 10_000_000), (8, 9_950_000), (7, 9_850_000))
    ]

    assert [False, False, True] == over


# --- the picture


def test_the_waterfall_shows_each_stage_with_its_share_and_the_sum_so_far():
    assert [
        "STAGE             TIME   SHARE       SUM",
        "receive         0.2 ms   <0.1%    0.2 ms  ▏",
        "admit          <0.1 ms   <0.1%    0.2 ms  ▏",
        "route           1.6 ms   <0.1%    1.8 ms  ▏",
        "tokenize        0.9 ms   <0.1%    2.7 ms  ▏",
        "queue            12 ms    0.3%     15 ms  ▏",
        "kv_load              -             15 ms",
        "prefill          85 ms      2%    100 ms  ▉",
        "decode           1.6 s     40%     1.7 s   ████████████████",
        "decode_wait      2.3 s     57%     4.0 s                   ███████████████████████",
        "kv_sync              -             4.0 s",
        "output_parse    0.1 ms   <0.1%     4.0 s                                         ▏",
        "deliver         0.4 ms   <0.1%     4.0 s                                         ▏",
    ] == waterfall(STALLED)


@given(st.lists(st.integers(0, 10**9), min_size=12, max_size=12))
def test_bars_stay_within_the_picture_and_none_that_took_time_is_missing(us):
    whole, begin = sum(us), 0
    for part in us:
        drawn = bar(begin, part, whole)
        assert len(drawn) <= BAR_CHARS
        assert bool(drawn.strip()) == (part > 0)
        begin += part


def test_the_heading_says_who_it_was_and_how_it_ended():
    assert [
        f"{STALLED.request}  finished, HTTP 200",
        "2026-01-01 00:00:00.001 UTC  wall 4.0 s, first token after 101 ms, then 31 ms a token",
        "service tiny, chat, streamed, class default",
        f"gateway {GATEWAY}, engine engine-0 ({ENGINE}), version v3",
        f"trace {TRACE.hex()}, the caller's id order-17",
    ] == heading(found(), NAMES)


def test_a_refused_request_has_neither_engine_nor_tokens():
    refused = ledger(
        4,
        parts={"receive": 1, "admit": 200},
        outcome=Outcome.REFUSED,
        status=503,
        code="overloaded",
        engine="",
        ttft_us=0,
        prompt_tokens=0,
        completion_tokens=0,
        batch_size=0.0,
    )

    assert f"{refused.request}  refused, HTTP 503 (overloaded)" == heading(found(refused), {})[0]
    assert [] == counts(found(refused), {})
    assert [
        "It was not admitted.",
        "Most of it, >99%, was admit (200 ms): waiting at the gateway until the engines had room.",
    ] == story(found(refused), None, {}, {})


@pytest.mark.parametrize(
    ("route", "why"), [("warm", "chosen for that"), ("best", "not chosen for that")]
)
def test_counts_tell_what_was_expected_where_it_went(route, why):
    warm = ledger(4, parts={"receive": 1}, route=route, expected_cached_tokens=1504)

    assert f"warmth    1,504 tokens expected there, {why}" in counts(found(warm), NAMES)


@pytest.mark.parametrize(
    ("host", "disk", "told"),
    [
        (30, 0, "96 cached: 30 from host memory"),
        (0, 96, "96 cached: 96 from disk"),
        (30, 50, "96 cached: 30 from host memory and 50 from disk"),
    ],
)
def test_counts_tell_which_blocks_came_from_below_the_pool(host, disk, told):
    loaded = msgspec.structs.replace(STALLED, host_tokens=host, disk_tokens=disk)

    assert f"tokens    prompt 120 ({told}, 24 computed), answer 128" == counts(found(loaded), {})[0]


def test_counts_tell_what_was_computed_and_what_twice():
    assert [
        "tokens    prompt 120 (96 cached, 24 computed), answer 128",
        "drafts    40 tokens proposed, 30 held (75%)",
        "run       steps 812 to 940, 7.5 in a batch, at most 17 KV blocks, FLASH_ATTN/graph",
        "preempted 1 time, 90 tokens computed again",
    ] == counts(found(), NAMES)


def test_a_wait_for_blocks_is_told_in_counts_and_words():
    waited = ledger(
        1, parts={"queue": 3000, "decode": 100}, blocks_us=2_900_000, prompt_tokens=9, last_step=0
    )

    assert "queued    2.9 s for KV blocks" in counts(found(waited), NAMES)
    assert "It was queued for KV blocks for 2.9 s: the pool was promised to others." in story(
        found(waited), None, {}, {}
    )
    assert not [line for line in counts(found(), NAMES) if "for KV blocks" in line]


# --- the words


def test_the_story_names_who_held_it_up_and_what_is_unusual():
    said = story(found(), usual(), {BLOCKER.request: BLOCKER}, NAMES)

    assert [
        "Most of it, 57%, was decode_wait (2.3 s).",
        f"Its decoding was held up by the prefill of {BLOCKER.request} for 2.1 s (class batch, a prompt of 7,012 tokens).",
        "It was preempted once: 90 tokens had to be computed again.",
        "Unusual: 2.3 s of decode_wait; 95 of 100 requests have none of it.",
        "Unusual: 1.6 s of decode; 95 of 100 requests have at most 80 ms.",
    ] == said


def test_a_usual_request_is_called_nothing_else():
    said = "Most of it, 80%, was decode (80 ms): 8 tokens an answer, 10 ms a token in batches of 4."

    assert [said] == story(found(ledger()), usual(), {}, NAMES)


def test_without_others_nothing_is_compared():
    window = LedgerWindow()
    for n in range(19):
        window.add(ledger(n))

    assert usual_of(window) is None


def test_a_lost_engine_is_named_with_how_the_answer_went_on():
    moved = ledger(
        parts={"route": 2000, "decode": 500},
        attempts=[Attempt(engine="e9", why="is gone", us=1_900_000, way="resume")],
        is_estimated=True,
        mode_changes=1,
        mode="CPU_ATTN/eager",
    )

    assert [
        "Most of it, 80%, was route (2.0 s).",
        f"It lost e9 after 1.9 s (is gone); the answer went on at engine-0 ({ENGINE}).",
        "The way of computing changed 1 time, last to CPU_ATTN/eager: a fallback kernel may have been used.",
        "Part of the engine's stages was seen from outside only, by the gateway.",
    ] == story(found(moved), None, {}, NAMES)


# --- the line


def test_a_line_shows_the_longest_stage_or_the_wanted_one():
    plain = log_line(found(), Wanted(), NAMES)
    queue = log_line(found(), Wanted(stage="queue"), {})

    assert (
        f"00:00:04.001  {STALLED.request}  finished     200     4.0 s   101 ms     128  decode_wait     2.3 s    57%  engine-0"
        == plain
    )
    assert f"queue           12 ms   0.3%  {ENGINE}" == queue[queue.index("queue") :]
    assert HEAD.index("ENGINE") == plain.index("engine-0")


@pytest.mark.parametrize(
    ("stage", "slower_ms", "is_taken"),
    [
        *(
            ("decode_wait", 0, True),
            ("decode", 0, True),
            ("prefill", 0, False),
            ("kv_load", 0, False),
        ),
        *(("", 3999, True), ("", 4001, False), ("decode", 5000, False)),
    ],
)
def test_a_stage_is_wanted_where_it_is_the_largest_or_a_quarter(stage, slower_ms, is_taken):
    assert is_taken == Wanted(stage=stage, slower_us=1000 * slower_ms).takes(STALLED)


def test_a_request_without_any_time_has_no_stage():
    assert not Wanted(stage="admit").takes(ledger(parts={}))


# --- for other programs


def test_as_json_ids_are_text_and_times_milliseconds():
    one = told(
        found(ledger(3, trace_id=TRACE, choices=[ChoiceRecord(index=0, tokens=8, finish="stop")]))
    )

    assert TRACE.hex() == one.trace_id
    assert "2026-01-01T00:00:00.003000+00:00" == one.began
    assert {
        str(s): {Stage.PREFILL: 20.0, Stage.DECODE: 80.0}.get(s, 0.0) for s in STAGES
    } == one.stages_ms
    assert [{"index": 0, "tokens": 8, "finish": "stop"}] == one.choices
