"""Templates: what they get to see, and what they may do."""

from __future__ import annotations

import json

import jinja2
import pytest

from services.engine.adapters.chat_template import ChatTemplate, TemplateRefusal, reads_tools


def render(
    source: str, messages: list, tools: list | None = None, *, content_format="string"
) -> str:
    template = ChatTemplate(source, variables={"bos_token": "<s>"}, content_format=content_format)
    return template.render(template.prepared(messages), tools)


def test_a_template_has_messages_tools_variables_and_the_wish_for_an_answer():
    source = "{{ bos_token }}{{ messages[0].content }}{{ tools[0].name }}{{ documents }}{{ add_generation_prompt }}"

    assert "<s>hifNoneTrue" == render(source, [{"role": "user", "content": "hi"}], [{"name": "f"}])


@pytest.mark.parametrize("content", [None, ""])
def test_missing_content_is_empty_text(content):
    assert "[]" == render(
        "[{{ messages[0].content }}]", [{"role": "assistant", "content": content}]
    )


def test_templates_that_want_parts_get_parts():
    source = "{% for part in messages[0].content %}{{ part.type }}:{{ part.text }}{% endfor %}"

    assert "text:hi" == render(source, [{"role": "user", "content": "hi"}], content_format="openai")
    assert "" == render(source, [{"role": "user", "content": ""}], content_format="openai")


def test_tool_results_stay_text():
    assert "42" == render(
        "{{ messages[0].content }}", [{"role": "tool", "content": "42"}], content_format="openai"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"a": [1, "ü"]}', {"a": [1, "ü"]}), ("", {}), ("no json", {}), ("[1]", {}), ("null", {})],
)
def test_arguments_of_tool_calls_are_objects(arguments, expected):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"

    assert expected == json.loads(render(source, [{"role": "assistant", "tool_calls": [call]}]))


def test_json_is_not_escaped_for_html():
    assert '"<ü&\'>"' == render(
        "{{ messages[0].content | tojson }}", [{"role": "user", "content": "<ü&'>"}]
    )


def test_generation_marks_and_loop_controls_are_known():
    source = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )

    assert "a" == render(
        source, [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    )


def test_a_template_may_refuse_in_its_own_words():
    with pytest.raises(TemplateRefusal, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}", [])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ ('{0.__class__}').format(messages) }}{{ messages.__init__.__globals__ }}",
    ],
)
def test_a_template_stays_in_its_sandbox(source):
    with pytest.raises(jinja2.exceptions.SecurityError):
        render(source, [])


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("{{ messages }}", False),
        ("{% if tools %}{{ tools | tojson }}{% endif %}", True),
        ("{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}", True),
        ("{# tools #}tools", False),
    ],
)
def test_whether_a_template_shows_tools_is_read_from_it(source, reads):
    assert reads == reads_tools(source)
