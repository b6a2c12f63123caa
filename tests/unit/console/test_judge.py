"""What the figures of a model mean: healthy ones pass, each kind of damage fails the check that is for it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.console.modelcheck import tables
from services.console.modelcheck.judge import Bounds, Verdict, compare, figures, judge, repetition
from shared.models.probe import (
    Answered,
    Broke,
    Line,
    Loaded,
    Option,
    Position,
    PrefixShared,
    Scored,
    Speed,
)

BOUNDS = Bounds()
LOADED = Loaded(seconds=4.0, engine="vllm 0.32.0", context_tokens=2304, block_tokens=128)


def answer(text="The sky is blue.", token_ids=None, logprob=-0.7, finish="stop") -> Answered:
    token_ids = list(range(12)) if token_ids is None else token_ids
    return Answered(
        question="why?",
        text=text,
        token_ids=token_ids,
        logprobs=[logprob] * len(token_ids),
        finish=finish,
    )


def scored(perplexity=13.6, tokens=100) -> Scored:
    token = Option(1, "a", -math.log(perplexity))
    return Scored(
        token_ids=[1] * (tokens + 1),
        prompt_tokens=tokens + 1,
        positions=[Position(token, [])] * tokens,
    )


def lines(*answers: Answered, cached=15_360, text: Scored | None = None) -> list[Line]:
    return [
        LOADED,
        *(answers or (answer(), answer())),
        PrefixShared(prompt_tokens=16_512, cached_tokens=cached),
        text or scored(),
    ]


def failed(*given_lines: Line) -> set[str]:
    return {check.name for check in judge(given_lines, BOUNDS) if not check.passed}


def test_a_healthy_model_passes_everything():
    assert set() == failed(*lines())


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (lines(answer(text=" \n"), answer()), "answers"),
        (lines(answer(text="sky \ufffd\ufffd blue")), "characters"),
        (lines(answer(text="sky \x00\x07 blue")), "characters"),
        (lines(answer(text='" " " " " " "')), "words"),
        (lines(answer(logprob=-2.2)), "own_perplexity"),
        (lines(answer(token_ids=[7] * 200)), "repetition"),
        (lines(answer(finish="length"), answer(), answer()), "finish"),
        (lines(cached=13_000), "kv_cache_hit_rate"),
        (lines(cached=0), "kv_cache_hit_rate"),
        (lines(text=scored(36.6)), "perplexity"),
    ],
)
def test_each_kind_of_damage_fails_its_check_and_no_other(made, name):
    assert {name} == failed(*made)


def test_what_is_not_like_latin_script_passes_as_well():
    assert set() == failed(*lines(answer(text="天空是蓝色的。"), answer(text="السماء زرقاء.\n")))


def test_a_model_that_does_not_load_fails_all_with_the_reason():
    checks = judge([Broke(step="load", reason="ValueError: relu")], BOUNDS)

    assert not any(check.passed for check in checks)
    assert "ValueError: relu" == checks[0].note
    assert {"not run: load failed"} == {check.note for check in checks[1:]}


def test_a_step_that_was_late_says_so_and_the_others_are_judged():
    late = Broke(step="prefix", reason="not done within 300 s")

    assert {"kv_cache_hit_rate"} == failed(LOADED, answer(), late, scored())


def test_an_engine_that_died_leaves_the_rest_not_run():
    checks = judge([LOADED, answer(), Broke(step="prefix", reason="died")], BOUNDS)

    assert "not run: prefix failed" == checks[-1].note


def test_the_ratio_is_that_of_the_perplexities():
    told = compare(lines(text=scored(15.0)), [scored(12.0)], BOUNDS)

    assert told.figure == pytest.approx(1.25)
    assert not told.passed
    assert compare(lines(text=scored(12.5)), [scored(12.0)], BOUNDS).passed


def test_another_tokenizer_is_compared_by_the_text_as_a_whole():
    """Half as many tokens, each as surprising as two: the same text costs the same."""
    told = compare([scored(16.0, tokens=50)], [scored(4.0, tokens=100)], BOUNDS)

    assert told.figure == pytest.approx(1.0)
    assert "other tokens" in told.note


@pytest.mark.parametrize("broken", [[], [Broke(step="load", reason="no room")]])
def test_without_a_figure_of_the_reference_the_ratio_fails(broken):
    assert not compare(lines(), broken, BOUNDS).passed


def test_figures_without_a_bound_are_told():
    told = figures([LOADED, Speed(step="prefill", tokens=1000, seconds=2.0)])

    assert [("load", 4.0), ("prefill", 500.0)] == [(each.name, each.value) for each in told]


def test_a_loop_repeats_nearly_everything():
    assert 0.0 == repetition([1, 2, 3, 4])
    assert repetition([1, 2] * 50) > 0.9


@given(st.lists(st.integers(0, 5), max_size=60))
def test_repetition_is_a_share_and_grows_with_a_second_copy(token_ids):
    once, twice = repetition(token_ids), repetition(token_ids * 2)

    assert 0.0 <= once <= 1.0
    assert once <= twice


@given(
    st.text(max_size=30),
    st.lists(st.floats(-9999.0, 0.0), max_size=20),
    st.integers(0, 10**9),
)
def test_whatever_a_model_says_is_judged(text, logprobs, cached):
    said = Answered(question="q", text=text, token_ids=[1], logprobs=logprobs, finish="stop")

    checks = judge([LOADED, said, PrefixShared(prompt_tokens=0, cached_tokens=cached)], BOUNDS)

    verdict = Verdict(model="m", reference="", passed=False, checks=checks, figures=[])
    assert tables.verdict(verdict)


def test_the_table_has_a_line_for_each_check_and_the_verdict():
    checks = judge(lines(answer(token_ids=[7] * 200)), BOUNDS)

    shown = tables.verdict(
        Verdict(model="m", reference="", passed=False, checks=checks, figures=figures(lines()))
    )

    assert "repetition          FAIL" in shown
    assert "kv_cache_hit_rate   PASS" in shown
    assert shown.endswith("m: FAIL: repetition")
