"""User text never becomes a control token, and ordinary text is tokenized as if there were no such rule."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.adapters.chat_template import ChatTemplate
from services.engine.adapters.prompt_tokens import Marker, NoMarkError, PromptTokenizer, Specials
from tests.support.tiny_tokenizers import GREEDY, SPECIALS, THINK, byte_level, sentence_piece

FAMILIES = {"byte_level": byte_level, "sentence_piece": sentence_piece}
TOKENIZERS = {name: PromptTokenizer(make().to_str()) for name, make in FAMILIES.items()}
ALL_SPECIALS = (*SPECIALS, GREEDY)

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
TEMPLATES = {
    "plain": CHATML,
    "greedy": "{% for message in messages %}<|user|>\n{{ message.content }}<|im_end|>{% endfor %}",
    "computed": "{% for message in messages %}{{ '<|im_' + 'start|>' + message.content + '<|' ~ 'im_end|>' }}{% endfor %}",
    "trim": CHATML.replace("message.content", "message.content | trim"),
    "lower": CHATML.replace("message.content", "message.content | lower"),
    "json": CHATML.replace("message.content", "message | tojson"),
    "ascii": CHATML.replace("message.content", "message | tojson(ensure_ascii=True)"),
    "slice": CHATML.replace("message.content", "message.content[:20]"),
    "joined": "<|im_start|>{% for message in messages %}{{ message.content }}{% endfor %}<|im_end|>",
}

ordinary = st.text(
    alphabet=st.one_of(
        st.sampled_from(list("ab xyz<|>_\n.{}\"'\\▁")), st.characters(exclude_categories=["Cs"])
    ),
    max_size=40,
)
spelled = st.sampled_from(
    [
        *ALL_SPECIALS,
        *(text.upper() for text in ALL_SPECIALS),
        *(text[:size] for text in ALL_SPECIALS for size in (1, 2, 5, len(text) - 1)),
        *(text[size:] for text in ALL_SPECIALS for size in (1, 2, 5, len(text) - 1)),
        "\ue000",
        "\\ue000",
        THINK,
        "<0x0A>",
        " ",
    ]
)
hostile = st.lists(st.one_of(spelled, st.text(max_size=4)), max_size=8).map("".join)


COMPILED = {
    name: ChatTemplate(source, variables={}, content_format="string")
    for name, source in TEMPLATES.items()
}
few = settings(max_examples=25)
"""For tests that run on each template and tokenizer."""


def render(tokenizer: PromptTokenizer, template: str, contents: list[str]) -> list[int]:
    """Return the tokens of a conversation."""
    messages = [{"role": "user", "content": content} for content in contents]
    marker = Marker(tokenizer.specials, [messages, None])
    return tokenizer.encode_rendered(COMPILED[template].render(*marker.marked()), marker)


def rendered_text(template: str, contents: list[str]) -> str:
    """Return what the template makes of the contents, without any marks."""
    messages = [{"role": "user", "content": content} for content in contents]
    return COMPILED[template].render(messages, None)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("family", FAMILIES)
@few
@given(contents=st.lists(ordinary, min_size=1, max_size=3))
def test_ordinary_text_is_tokenized_as_ever(family, template, contents):
    text = rendered_text(template, contents)

    if not any(special in "".join(contents).lower() for special in ALL_SPECIALS):
        expected = FAMILIES[family]().encode(text, add_special_tokens=False).ids
        if template != "joined" or "|" not in "".join(contents):
            assert expected == render(TOKENIZERS[family], template, contents)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("family", FAMILIES)
@few
@given(contents=st.lists(hostile, min_size=1, max_size=3))
def test_user_text_never_becomes_a_control_token(family, template, contents):
    tokenizer = FAMILIES[family]()
    control = {tokenizer.token_to_id(special) for special in ALL_SPECIALS}
    harmless = ["x" for _ in contents]

    ids = render(TOKENIZERS[family], template, contents)

    expected = [each for each in render(TOKENIZERS[family], template, harmless) if each in control]
    assert expected == [each for each in ids if each in control]


@given(contents=st.lists(hostile, min_size=1, max_size=3))
def test_hostile_text_reaches_the_model_as_it_was_written(contents):
    ids = render(TOKENIZERS["byte_level"], "plain", contents)

    assert rendered_text("plain", contents) == byte_level().decode(ids, skip_special_tokens=False)


def test_names_tool_calls_and_keys_count_as_user_text():
    tokenizer = TOKENIZERS["byte_level"]
    source = "<|im_start|>{{ messages | tojson }}{{ tools | tojson }}"
    messages = [
        {"role": "user", "name": "<|im_end|>", "tool_calls": [{"<|im_start|>": 1, "b": None}]}
    ]
    marker = Marker(tokenizer.specials, [messages, [{"description": "<|im_end|>"}]])

    text = ChatTemplate(source, variables={}, content_format="string").render(*marker.marked())
    ids = tokenizer.encode_rendered(text, marker)

    control = {byte_level().token_to_id(special) for special in ALL_SPECIALS}
    assert [byte_level().token_to_id("<|im_start|>")] == [each for each in ids if each in control]
    assert json.dumps(messages) in byte_level().decode(ids, skip_special_tokens=False)


def test_raw_text_may_hold_special_tokens():
    ids = TOKENIZERS["byte_level"].encode_raw("a<|im_end|>b")

    assert byte_level().token_to_id("<|im_end|>") in ids
    assert byte_level().encode("a<|im_end|>b").ids == ids


def test_all_private_characters_at_once_are_refused():
    everything = "".join(map(chr, range(0xE000, 0xF900)))
    marker = Marker(TOKENIZERS["byte_level"].specials, [everything + "<|im_end|>"])

    with pytest.raises(NoMarkError):
        marker.marked()


def test_text_without_specials_is_passed_on_untouched():
    values = [[{"content": "1 < 2 | 3"}], None]

    assert values == Marker(TOKENIZERS["byte_level"].specials, values).marked()


def test_overlapping_specials_are_all_cut():
    specials = Specials(["<a><b>", "<b>"])

    assert [1, 4] == specials.cuts("<a><b> ")


def test_a_tokenizer_without_specials_has_nothing_to_cut():
    assert [] == Specials([]).cuts("<|im_end|>")
