"""The figures of a load test, by values."""

from __future__ import annotations

import random

import pytest

from services.console.loadtest.figures import Sample, nearest_rank, spread, summarise, table, tpot_s
from services.console.loadtest.workload import LoadOptions, arrivals, prompt, words_for


def sample(
    *times: float,
    due: float = 0.0,
    end: float = 1.0,
    out: int | None = None,
    error: str | None = None,
) -> Sample:
    tokens = len(times) if out is None else out
    return Sample(
        due_s=due,
        token_times_s=list(times),
        end_s=end,
        prompt_tokens=10,
        output_tokens=tokens,
        error=error,
    )


@pytest.mark.parametrize(
    ("share", "value"), [(0.5, 2), (0.51, 3), (0.75, 3), (0.99, 4), (1.0, 4), (0.01, 1)]
)
def test_nearest_rank_is_the_smallest_value_that_covers_the_share(share, value):
    assert value == nearest_rank([1, 2, 3, 4], share)


def test_spread_of_nothing_is_nothing():
    assert spread([]) is None


def test_ttft_counts_from_when_the_request_was_due():
    figures = summarise([sample(1.5, due=1.0, end=2.0)], elapsed_s=1.0, token_index=10)

    assert figures.ttft_ms is not None
    assert figures.ttft_ms.p50 == pytest.approx(500.0)


def test_tpot_divides_by_tokens_not_by_chunks():
    merged = sample(1.0, 2.0, out=11)

    assert tpot_s(merged) == pytest.approx(0.1)


def test_tpot_of_a_single_token_is_unknown():
    assert tpot_s(sample(1.0)) is None


def test_failed_requests_count_as_failed_and_nowhere_else():
    samples = [sample(0.1, 0.2), sample(error="HTTP 503: no"), sample(error="HTTP 503: no")]

    figures = summarise(samples, elapsed_s=2.0, token_index=2)

    assert (3, 2) == (figures.requests, figures.failed)
    assert {"HTTP 503: no": 2} == figures.errors
    assert figures.output_tokens_per_s == pytest.approx(1.0)
    assert figures.nth_token_ms is not None
    assert figures.nth_token_ms.max == pytest.approx(200.0)


def test_table_shows_every_latency_and_every_error():
    text = table(
        summarise(
            [sample(0.1, 0.2, 0.3), sample(error="HTTP 500: x")], elapsed_s=1.0, token_index=3
        )
    )

    for word in ("TTFT", "TPOT", "inter-token", "token 3", "end to end", "1 × HTTP 500: x"):
        assert word in text


def test_table_of_a_run_without_success_has_no_numbers_to_show():
    text = table(summarise([sample(error="HTTP 500: x")], elapsed_s=1.0, token_index=3))

    assert "failed 1" in text


def test_prompts_have_the_wanted_number_of_words_and_differ():
    rng = random.Random(1)

    first, second = prompt(50, rng=rng), prompt(50, rng=rng)

    assert 50 == len(first.split())
    assert first != second


def test_words_for_a_prompt_leave_room_for_the_template():
    assert 480 == words_for(512, overhead_tokens=32)
    assert 1 == words_for(8, overhead_tokens=32)


def test_arrivals_follow_the_rate():
    times = arrivals(50.0, rng=random.Random(3))

    last = [next(times) for _ in range(5000)][-1]

    assert last == pytest.approx(100.0, rel=0.1)


@pytest.mark.parametrize(
    ("options", "total"),
    [
        (LoadOptions(concurrency=8), 32),
        (LoadOptions(concurrency=8, requests=5), 5),
        (LoadOptions(concurrency=8, duration_s=3.0), None),
    ],
)
def test_a_run_ends_by_number_or_time(options, total):
    assert total == options.total_requests
