"""Completion requests: which are taken as what, and which are refused with which field's name."""

from __future__ import annotations

import pytest

from services.gateway.call import ApiError
from services.gateway.openai.completion import DEFAULT_MAX_TOKENS, CompletionBody, parse_completion
from services.gateway.openai.limits import RequestLimits
from shared.messages import TextPrompt, TokensPrompt
from tests.support.openai_calls import LIMITS, SEED, completion, completion_body


def refused_param(**fields) -> str | None:
    with pytest.raises(ApiError) as caught:
        completion(**fields)
    assert 400 == caught.value.status
    return caught.value.param


@pytest.mark.parametrize(
    ("sent", "prompts"),
    [
        ("a", (TextPrompt(text="a"),)),
        ("", (TextPrompt(text=""),)),
        (["a", "b"], (TextPrompt(text="a"), TextPrompt(text="b"))),
        ([0, 2**31 - 1], (TokensPrompt(token_ids=[0, 2**31 - 1]),)),
        ([[1], [2, 3]], (TokensPrompt(token_ids=[1]), TokensPrompt(token_ids=[2, 3]))),
    ],
)
def test_a_prompt_is_text_or_tokens_one_or_several(sent, prompts):
    assert prompts == completion(prompt=sent).prompts


@pytest.mark.parametrize(
    "sent", [None, 5, {}, [], [[]], [[1], []], ["a", 1], ["a", [1]], [1, [1]], ["a"] * 257]
)
def test_another_prompt_is_refused(sent):
    assert "prompt" == refused_param(prompt=sent)


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ([True], "prompt[0]"),
        ([-1], "prompt[0]"),
        ([2**31], "prompt[0]"),
        ([[1], [1.5]], "prompt[1][0]"),
    ],
)
def test_a_wrong_token_id_is_refused_by_its_place(sent, param):
    assert param == refused_param(prompt=sent)


def test_a_missing_prompt_is_named():
    with pytest.raises(ApiError, match="Missing required parameter: `prompt`"):
        parse_completion(b'{"model":"m"}', LIMITS, seed=SEED)


def test_tokens_are_bounded_by_openais_default():
    assert DEFAULT_MAX_TOKENS == completion().sampling.max_tokens
    assert 5 == completion(max_tokens=5).sampling.max_tokens


def test_an_explicit_null_is_an_absent_field():
    optional = set(CompletionBody.__struct_fields__) - {"model", "prompt"}

    assert completion() == completion(**dict.fromkeys(optional))


@pytest.mark.parametrize("count", [None, 0, 20])
def test_logprobs_is_a_number_of_alternatives(count):
    assert count == completion(logprobs=count).sampling.logprobs


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"n": 128, "prompt": ["a"] * 5}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"stream_options": {}}, "stream_options"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(fields, param):
    assert param == refused_param(**fields)


def test_what_asks_for_nothing_is_taken():
    plain = completion(n=2)

    assert plain == completion(n=2, best_of=2, echo=False, suffix="")


def test_work_is_all_prompts_and_what_may_be_generated_for_each():
    assert 2 * (25 + 3 * 10) == completion(prompt=["x" * 100] * 2, n=3, max_tokens=10).work_tokens
    assert 7 + 10 == completion(prompt=[1] * 7, max_tokens=10).work_tokens
    assert 2 + 1 == completion(prompt="äöüß", max_tokens=1).work_tokens


def test_bounds_come_from_the_limits():
    with pytest.raises(ApiError, match="at most 1"):
        parse_completion(
            completion_body(prompt=["a", "b"]), RequestLimits(max_prompts=1), seed=SEED
        )


def test_token_ids_are_bounded_over_all_prompts():
    limits = RequestLimits(max_prompt_tokens=3)

    with pytest.raises(ApiError, match="4 token ids; at most 3"):
        parse_completion(completion_body(prompt=[[1, 2], [3, 4]]), limits, seed=SEED)
