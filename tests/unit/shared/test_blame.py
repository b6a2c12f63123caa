"""Which stage explains the slow requests, by values and as properties."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.blame import LedgerWindow, Trait, blame, sentences
from shared.blame.groups import until_first
from shared.blame.report import nearest_rank
from shared.blame.skew import chance, stratum
from shared.messages import STAGES, Attempt, Ledger, Outcome, Stage
from tests.support.requests_seen import ENGINE, blocked, ledger

OTHER_ENGINE = "e0000000000000002"


def window(*ledgers: Ledger) -> LedgerWindow:
    made = LedgerWindow()
    for one in ledgers:
        made.add(one)
    return made


def usual(count: int, first: int = 0) -> list[Ledger]:
    """Requests of a tenth of a second that differ by some microseconds."""
    return [
        ledger(n, parts={"prefill": 20, "decode": 80 + n / 1000})
        for n in range(first, first + count)
    ]


def stalled(number: int, ms: float = 2000) -> Ledger:
    parts = {"prefill": 20, "decode": 90, "decode_wait": ms}
    return ledger(number, parts=parts, blocked_by=[blocked(7, ms)])


# --- the figures


def test_the_stage_that_only_slow_requests_have_explains_them():
    report = blame(window(*usual(97), *(stalled(n) for n in range(100, 103))))
    median, _, last = report.wall

    assert ["p50", "p95", "p99"] == [q.name for q in report.wall]
    assert 100_049 == pytest.approx(median.us, abs=50)
    assert 2_110_000 == last.us
    assert Stage.DECODE_WAIT == last.worst[0].stage
    assert 0.99 < last.worst[0].share < 1
    assert Stage.DECODE == median.worst[0].stage
    assert 0.8 == pytest.approx(median.worst[0].share, abs=0.01)


def test_the_slowest_of_three_is_compared_with_the_one_in_the_middle():
    report = blame(window(*usual(2), stalled(100)))

    assert [1, 1, 1] == [quantile.around.requests for quantile in report.wall]
    assert Stage.DECODE_WAIT is report.wall[-1].worst[0].stage


def test_time_that_everybody_spends_explains_no_difference():
    ledgers = [ledger(n, parts={"prefill": 500, "queue": 10 * n}) for n in range(100)]

    last = blame(window(*ledgers)).wall[-1]

    assert [Stage.QUEUE] == [part.stage for part in last.worst]
    assert 0 == next(part.over_us for part in last.parts if part.stage is Stage.PREFILL)


def test_all_but_prefill_and_decode_is_no_computing():
    report = blame(window(ledger(parts={"queue": 25, "prefill": 25, "decode": 50})))

    assert 0.25 == report.non_compute_share


def test_blockers_are_added_up_and_the_worst_comes_first():
    waits = [
        ledger(1, blocked_by=[blocked(50, 10), blocked(51, 30)]),
        ledger(2, blocked_by=[blocked(50, 25)]),
        ledger(50, prompt_tokens=7000),
    ]

    report = blame(window(*waits))

    assert [(35_000, 2), (30_000, 1)] == [(b.us, b.held) for b in report.blockers]
    assert {waits[2].request: 7000} == report.prompt_tokens


def test_an_engine_that_has_the_slow_ones_is_named_and_one_among_equals_is_not():
    mixed = [
        ledger(n, engine=(ENGINE, OTHER_ENGINE)[n % 2], parts={"decode": 80 + n})
        for n in range(200)
    ]
    sick = [ledger(n, engine=OTHER_ENGINE, parts={"decode": 5000}) for n in range(1000, 1022)]

    even = blame(window(*mixed))
    odd = blame(window(*mixed, *sick))

    assert [] == [s for s in even.skews if s.trait is Trait.ENGINE]
    assert [(Trait.ENGINE, OTHER_ENGINE)] == [(s.trait, s.value) for s in odd.skews]
    assert (23, 23) == (odd.skews[0].slow, odd.skews[0].of_slow)


def test_what_chance_may_do_is_nobodys_fault():
    """Of ten slow requests seven are of an engine that has two in five: once in twenty draws."""
    mixed = [
        ledger(n, engine=(ENGINE, OTHER_ENGINE)[n % 5 < 2], parts={"decode": 80 + n / 10})
        for n in range(90)
    ]
    slow = [
        ledger(n, engine=(ENGINE, OTHER_ENGINE)[n < 207], parts={"decode": 500})
        for n in range(200, 210)
    ]

    assert [] == blame(window(*mixed, *slow)).skews


def test_a_trait_of_few_of_the_slow_ones_explains_too_little():
    ledgers = [
        ledger(n, priority="batch" if n >= 295 else "default", parts={"decode": n + 1})
        for n in range(300)
    ]

    assert [] == blame(window(*ledgers)).skews


def test_a_wait_of_some_milliseconds_for_another_is_no_hold_up():
    parts = {"prefill": 20, "decode": 900, "decode_wait": 300}
    slow = [
        ledger(n, parts=parts, blocked_by=[blocked(1, 3)], preemptions=1) for n in range(100, 103)
    ]

    assert 0 == blame(window(*usual(97), *slow)).wall[-1].around.held_up


def test_prompts_that_make_requests_slow_are_named_by_their_length():
    long = [ledger(n, parts={"prefill": 3000}, prompt_tokens=9000) for n in range(500, 520)]

    report = blame(window(*usual(180), *long))

    assert [(Trait.PROMPT, "4,096 to 16,383")] == [(s.trait, s.value) for s in report.skews]


def test_the_wait_for_the_first_token_is_what_lies_before_it():
    one = ledger(parts={"receive": 1, "queue": 9, "prefill": 30, "decode": 500}, ttft_us=42_000)

    parts = until_first(one)

    assert parts is not None
    assert 42_000 == sum(parts)
    assert 2_000 == parts[STAGES.index(Stage.DELIVER)]
    assert 0 == parts[STAGES.index(Stage.DECODE)]


def test_after_a_loss_behind_the_first_token_nobody_can_tell_what_lay_before_it():
    lost = ledger(
        parts={"route": 2000, "prefill": 30, "decode": 100},
        ttft_us=40_000,
        attempts=[Attempt(engine=ENGINE, why="is gone", us=1)],
    )

    assert until_first(lost) is None


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 10**7), min_size=12, max_size=12), min_size=1, max_size=30))
def test_shares_sum_to_one_and_parts_to_the_mean_of_the_group(rows):
    ledgers = [ledger(n, wall_us=sum(us), us=us, ttft_us=0) for n, us in enumerate(rows)]

    report = blame(window(*ledgers))

    for quantile in report.wall:
        assert quantile.us in {one.wall_us for one in ledgers}
        assert sum(part.us for part in quantile.parts) == pytest.approx(quantile.around.total_us)
        shares = sum(part.share for part in quantile.parts)
        assert shares == pytest.approx(1) or shares == 0
    assert report.wall[0].us <= report.wall[1].us <= report.wall[2].us
    assert 0 <= report.non_compute_share <= 1
    assert sentences(report)


@settings(max_examples=50)
@given(st.integers(1, 3000), st.sampled_from([0.5, 0.95, 0.99]))
def test_the_rank_is_the_smallest_that_covers_the_share(size, share):
    rank = nearest_rank(size, share)

    assert (rank + 1) / size >= share - 1e-9
    assert rank == 0 or rank / size < share


@pytest.mark.parametrize(
    ("hits", "tries", "share"), [(3, 5, 0.4), (10, 10, 0.5), (1, 9, 0.01), (0, 4, 0.3)]
)
def test_chance_is_the_upper_tail_of_the_binomial(hits, tries, share):
    exact = sum(
        math.comb(tries, k) * share**k * (1 - share) ** (tries - k) for k in range(hits, tries + 1)
    )

    assert exact == pytest.approx(chance(hits, tries, share))


def test_strata_have_no_gap_between_them():
    names = [stratum(tokens) for tokens in (0, 255, 256, 1023, 1024, 16_383, 16_384, 10**6)]

    assert [
        *("under 256", "under 256", "256 to 1,023", "256 to 1,023"),
        *("1,024 to 4,095", "4,096 to 16,383", "16,384 or more", "16,384 or more"),
    ] == names


# --- bounded memory


def test_beyond_the_bound_a_uniform_sample_is_kept_and_the_counts_stay_exact():
    rng = random.Random(3)
    sampled = LedgerWindow(max_finished=500, max_unfinished=10)
    for n in range(5_000):
        sampled.add(ledger(n, parts={"decode": rng.expovariate(0.01)}))
        sampled.add(ledger(n, outcome=Outcome.REFUSED))

    report = blame(sampled)

    assert (500, 10) == (len(sampled.finished), len(sampled.unfinished))
    assert sampled.is_sampled
    assert {Outcome.FINISHED: 5_000, Outcome.REFUSED: 5_000} == report.outcomes
    assert report.wall[0].us == pytest.approx(69_300, rel=0.15)
    late = sum(one.began_unix_us > sampled.finished[0].began_unix_us for one in sampled.finished)
    assert 0 < late < 500


def test_a_flood_of_refusals_leaves_the_served_ones_in_place():
    flooded = LedgerWindow(max_finished=100, max_unfinished=10)
    for one in usual(50):
        flooded.add(one)
    for n in range(1000):
        flooded.add(ledger(n, outcome=Outcome.REFUSED))

    assert usual(50) == flooded.finished
    assert not flooded.is_sampled


# --- the words


def test_words_name_the_stage_the_blocker_and_its_prompt():
    slow = [stalled(n, 2300) for n in range(100, 103)]
    report = blame(window(*usual(97), *slow, ledger(7, prompt_tokens=7012)))

    said = sentences(report)

    assert said[:3] == [
        "p99 is 2.4 s, p50 100 ms; >99% of the difference is decode_wait: 3 of 4 slow requests were held up by prefills of others.",
        "Most of that by chatcmpl-000000000000000000000007 with a prompt of 7,012 tokens: 6.9 s in all.",
        "The usual request is 80% decode and 20% prefill; 41% of all time is neither prefill nor decode.",
    ]


def test_of_many_blockers_none_is_said_to_have_done_most():
    parts = {"prefill": 20, "decode": 90, "decode_wait": 1000}
    slow = [ledger(n, parts=parts, blocked_by=[blocked(n - 100, 1000)]) for n in range(100, 103)]

    said = sentences(blame(window(*usual(97), *slow)))

    assert said[1].startswith("The worst of them was chatcmpl-000000000000000000000000 ")


def test_words_tell_preemption_from_being_held_up():
    parts = {"prefill": 20, "decode": 90, "decode_wait": 900}
    slow = [ledger(n, parts=parts, preemptions=1, recomputed_tokens=600) for n in range(100, 103)]

    said = sentences(blame(window(*usual(97), *slow)))[0]

    assert (
        "decode_wait: 3 of 4 slow requests were preempted, 1,800 tokens were computed again."
        in said
    )


def test_long_answers_are_no_fault_of_decoding():
    slow = [
        ledger(n, parts={"prefill": 20, "decode": 9000}, completion_tokens=900)
        for n in range(100, 103)
    ]

    said = sentences(blame(window(*usual(97), *slow)))[0]

    assert "decode: 677 tokens an answer, 8 around the median." in said


def test_two_stages_that_share_a_difference_are_both_named():
    slow = [
        ledger(n, parts={"prefill": 20, "decode": 80, "queue": 550, "admit": 450})
        for n in range(100, 103)
    ]

    said = sentences(blame(window(*usual(97), *slow)))[0]

    assert "55% of the difference is queue, 45% admit: waiting in the engine for a turn." in said


def test_equal_requests_have_no_slow_ones():
    said = sentences(blame(window(*usual(50))))[0]

    assert "p99 is 100 ms, p50 100 ms: no request is much slower than the usual one." == said


def test_no_request_at_all_is_said():
    report = blame(window())

    assert [] == report.wall
    assert ["No request ended in this window."] == sentences(report)


def test_few_requests_are_said_to_be_few():
    said = sentences(blame(window(*usual(6))))

    assert "Only 6 requests finished: too few to speak of a p99, read it as an example." == said[0]


def test_only_failures_tell_where_their_time_went():
    refused = [
        ledger(
            n, outcome=Outcome.REFUSED, status=503, parts={"receive": 1, "admit": 999}, ttft_us=0
        )
        for n in range(3)
    ]
    expired = ledger(9, outcome=Outcome.EXPIRED, status=504, parts={"admit": 1000}, ttft_us=0)

    said = sentences(blame(window(*refused, expired)))

    assert [
        "No request finished.",
        "4 requests did not finish (3 refused and 1 expired); >99% of their time was admit, 1.0 s each.",
    ] == said


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_has_words_for_being_to_blame(stage):
    slow = [
        ledger(n, parts={"prefill": 20, "decode": 80, stage: 3000}, blocked_by=[blocked(1, 2000)])
        for n in range(100, 103)
    ]

    said = sentences(blame(window(*usual(97), *slow)))[0]

    assert f" of the difference is {stage}: " in said
