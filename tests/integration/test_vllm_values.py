"""What the adapter makes of sampling fields, tools and outputs, by vLLM's own types and without an engine."""

from __future__ import annotations

import json

import pytest

from services.engine.ports import Limits, RefusedError
from shared.messages import ChatPrompt, RefuseReason, TextPrompt, TokensPrompt
from tests.support.engine_rig import job_of
from tests.support.vllm_rig import ANY_TOOL, imported_vllm

imported_vllm()

from vllm.sampling_params import RequestOutputKind  # noqa: E402 - after the switches that vLLM reads when it is imported

from services.engine.adapters.vllm_sampling import Abilities, params_of, room, seed_of  # noqa: E402
from services.engine.adapters.vllm_shape import Shape, shape_of  # noqa: E402

LIMITS = Limits(
    backend="vllm",
    model="m",
    version="0",
    max_model_len=100,
    max_streams=8,
    total_blocks=20,
    block_tokens=16,
)
CHAT = ChatPrompt(messages_json=b"[]")


def abilities(**defaults) -> Abilities:
    return Abilities(limits=LIMITS, vocab_size=1000, max_logprobs=5, defaults=defaults)


def params(defaults=None, **sampling):
    made = params_of(job_of(**sampling), 10, abilities=abilities(**(defaults or {})), shape=Shape())
    assert made.output_kind is RequestOutputKind.DELTA
    return made


# --- sampling


def test_fields_that_nobody_sets_are_neutral():
    made = params()

    assert (1.0, 1.0, 0, 0.0, 1.0) == (
        made.temperature,
        made.top_p,
        made.top_k,
        made.min_p,
        made.repetition_penalty,
    )


def test_the_models_own_defaults_come_before_the_neutral_ones():
    made = params({"temperature": 0.6, "top_k": 20, "max_new_tokens": 5, "min_p": None}, top_k=7)

    assert (0.6, 7, 0.0, 10) == (made.temperature, made.top_k, made.min_p, made.max_tokens)


def test_every_field_reaches_vllm():
    asked = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "min_tokens": 2,
        "stop": ("a", "b"),
        "stop_token_ids": (5, 6),
        "seed": 9,
        "logprobs": 4,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.2,
        "logit_bias": {7: 2.0},
        "ignore_eos": True,
    }

    made = params(**asked)

    for name, value in asked.items():
        assert value == (
            tuple(getattr(made, name)) if isinstance(value, tuple) else getattr(made, name)
        )


@pytest.mark.parametrize("top_k", [0, -1])
def test_no_limit_of_top_k_has_two_spellings(top_k):
    assert params(top_k=top_k).top_k in {0, -1}


@pytest.mark.parametrize(
    ("sampling", "param", "says"),
    [
        ({"logprobs": 6}, "logprobs", "5"),
        ({"logprobs": -1}, "logprobs", "5"),
        ({"logit_bias": {1000: 1.0}}, "logit_bias", "999"),
        ({"stop_token_ids": (1000,)}, "stop_token_ids", "999"),
        ({"min_tokens": 11}, "min_tokens", "10"),
        ({"n": 9}, "n", "8"),
        ({"n": 0}, "n", "8"),
        ({"temperature": 3.0}, "temperature", "2"),
        ({"top_p": 0.0}, "top_p", "0"),
        ({"presence_penalty": 9.0}, None, "presence_penalty"),
        ({"stop": ("",)}, None, "stop"),
    ],
)
def test_what_is_out_of_range_is_refused_with_the_range(sampling, param, says):
    with pytest.raises(RefusedError, match=says) as caught:
        params(**sampling)

    assert (RefuseReason.INVALID, param) == (caught.value.reason, caught.value.param)


def test_chats_call_the_number_of_alternatives_top_logprobs():
    with pytest.raises(RefusedError) as caught:
        params_of(job_of(CHAT, logprobs=6), 10, abilities=abilities(), shape=Shape())

    assert caught.value.param == "top_logprobs"


@pytest.mark.parametrize("seed", [0, 5, -5, -1, -2, 2**63 - 1])
def test_every_seed_is_one_and_choices_have_their_own(seed):
    seeds = [seed_of(seed, choice) for choice in range(3)]

    assert all(each is not None and each != -1 and -(2**63) <= each < 2**63 for each in seeds)
    assert params(seed=seed).seed == seeds[0]
    assert seed == 2**63 - 1 or len(set(seeds)) > 1


def test_no_seed_stays_none():
    assert seed_of(None, 3) is None


# --- room


def test_an_answer_without_a_bound_may_fill_the_context():
    assert 90 == room(job_of(max_tokens=None), 10, LIMITS)


def test_a_bounded_answer_keeps_its_bound():
    assert 90 == room(job_of(max_tokens=90), 10, LIMITS)


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "param", "numbers"),
    [
        (10, 91, "max_tokens", "101 tokens (10 in the prompt, 91 in the completion)"),
        (100, None, "prompt", "101 tokens (100 in the prompt"),
    ],
)
def test_too_long_is_told_in_the_words_that_clients_look_for(
    prompt_tokens, max_tokens, param, numbers
):
    with pytest.raises(RefusedError) as caught:
        room(job_of(max_tokens=max_tokens), prompt_tokens, LIMITS)

    assert (RefuseReason.TOO_LONG, param) == (caught.value.reason, caught.value.param)
    assert "maximum context length is 100 tokens" in str(caught.value)
    assert numbers in str(caught.value)


def test_what_can_never_fit_the_pool_is_refused():
    small = Limits(
        backend="vllm",
        model="m",
        version="0",
        max_model_len=100,
        max_streams=8,
        total_blocks=3,
        block_tokens=16,
    )

    with pytest.raises(RefusedError, match="3 blocks of 16 tokens") as caught:
        room(job_of(max_tokens=40), 10, small)

    assert caught.value.reason is RefuseReason.TOO_LONG
    assert 38 == room(job_of(max_tokens=None), 10, small)


def test_an_empty_prompt_is_refused():
    with pytest.raises(RefusedError) as caught:
        room(job_of(TokensPrompt(token_ids=[])), 0, LIMITS)

    assert (RefuseReason.INVALID, "prompt") == (caught.value.reason, caught.value.param)


# --- shape


def chat(choice: str = "auto", tools: bytes | None = ANY_TOOL) -> ChatPrompt:
    return ChatPrompt(messages_json=b"[]", tools_json=tools, tool_choice=choice)


def test_text_has_no_shape():
    assert Shape() == shape_of(job_of(), None, shows_tools=False)
    assert Shape() == shape_of(job_of(chat("none")), None, shows_tools=False)
    assert Shape() == shape_of(job_of(chat("auto", None)), None, shows_tools=False)


def test_json_is_a_grammar():
    schema = b'{"type": "object"}'

    assert shape_of(job_of(json_object=True), None, shows_tools=True).grammar.json_object
    assert (
        schema.decode() == shape_of(job_of(json_schema=schema), None, shows_tools=True).grammar.json
    )


@pytest.mark.parametrize(
    ("job", "shows_tools", "reason", "param"),
    [
        (job_of(chat()), False, RefuseReason.UNSUPPORTED, "tools"),
        (job_of(chat()), True, RefuseReason.UNSUPPORTED, "tool_choice"),
        (job_of(chat("function:g")), True, RefuseReason.INVALID, "tool_choice"),
        (
            job_of(chat("required"), json_object=True),
            True,
            RefuseReason.UNSUPPORTED,
            "response_format",
        ),
        (job_of(json_schema=b"[]"), True, RefuseReason.INVALID, "response_format"),
    ],
)
def test_shapes_that_do_not_go_are_refused(job, shows_tools, reason, param):
    with pytest.raises(RefusedError) as caught:
        shape_of(job, None, shows_tools=shows_tools)

    assert (reason, param) == (caught.value.reason, caught.value.param)


def test_other_prompts_need_no_tools():
    assert Shape() == shape_of(job_of(TextPrompt(text=json.dumps({}))), None, shows_tools=False)
