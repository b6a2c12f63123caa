"""The estimate of answers without a bound."""

from __future__ import annotations

import random

import pytest

from services.engine.answer_lengths import AnswerLengths


def test_before_any_answer_it_is_a_part_of_the_context():
    assert 512 == AnswerLengths(8192).tokens


@pytest.mark.parametrize("mean", [40, 400, 4000])
def test_it_comes_to_what_most_answers_need_and_stays_there(mean):
    draw = random.Random(1)
    lengths = AnswerLengths(32_768)
    for _ in range(3000):
        lengths.add(int(draw.expovariate(1 / mean)) + 1)
    found = []
    for _ in range(2000):
        found.append(lengths.tokens)
        lengths.add(int(draw.expovariate(1 / mean)) + 1)

    # Of exponential lengths 95% are below three times the mean.
    assert 0.9 < sum(found) / len(found) / (3 * mean) < 1.1


def test_it_stays_within_the_context():
    lengths = AnswerLengths(1000)
    for tokens in [5000] * 100:
        lengths.add(tokens)
    assert 1000 == lengths.tokens

    for _ in range(10_000):
        lengths.add(1)
    assert 1 == lengths.tokens
