"""JSON and tool calls by real vLLM: what the grammar forces, what is refused before it reaches the core."""

from __future__ import annotations

import json

import pytest

from services.engine.ports import EngineFailedError
from shared.messages import Finish, RefuseReason
from tests.support.engine_rig import EngineRig, job_of
from tests.support.vllm_rig import ANY_TOOL, chat, imported_vllm, refused, tokenizer_of

imported_vllm()

from services.engine.adapters.vllm_shape import shape_of  # noqa: E402 - after the switches that vLLM reads when it is imported
from services.engine.adapters.vllm_tools import ToolParser  # noqa: E402

PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Bob"]}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}


def test_an_answer_matches_its_schema(vllm_rig: EngineRig):
    async def scenario():
        schema = json.dumps(PERSON).encode()
        text = await vllm_rig.text(chat("Who?"), json_schema=schema, max_tokens=200)

        assert {"name", "old"} == set(json.loads(text))

    vllm_rig.run(scenario())


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "blub"},
        {"$ref": "#/$defs/a"},
        {"type": "integer", "multipleOf": 3},
        {"type": "string", "pattern": "("},
    ],
)
def test_schemas_that_have_no_grammar_are_refused_and_the_core_lives(vllm_rig: EngineRig, schema):
    refusal = refused(vllm_rig, job_of(json_schema=json.dumps(schema).encode()))

    assert (RefuseReason.INVALID, "response_format") == (refusal.reason, refusal.param)
    assert "/project/" not in str(refusal)
    assert vllm_rig.run(vllm_rig.text("hi", max_tokens=2))


def tools(**parameters) -> bytes:
    return json.dumps(
        [
            {"type": "function", "function": {"name": name, "parameters": each}}
            for name, each in parameters.items()
        ]
    ).encode()


def test_a_named_function_is_called(vllm_rig: EngineRig):
    async def scenario():
        prompt = chat(
            "Who?",
            tools_json=tools(note=PERSON, other={"type": "object"}),
            tool_choice="function:note",
        )
        job = job_of(prompt, max_tokens=200)
        pieces = await vllm_rig.answer(job)
        calls = [call for piece in pieces if piece.extra for call in piece.extra.tool_calls or ()]

        assert "" == vllm_rig.pieces.text(job.key)
        assert ("note", Finish.TOOL_CALLS) == (calls[0].name, pieces[-1].finish)
        assert {"name", "old"} == set(json.loads("".join(call.arguments for call in calls)))

    vllm_rig.run(scenario())


def test_a_required_call_is_made(vllm_rig: EngineRig):
    async def scenario():
        prompt = chat(
            "Who?",
            tools_json=tools(note=PERSON, tell=PERSON),
            tool_choice="required",
            parallel_tool_calls=False,
        )
        pieces = await vllm_rig.answer(job_of(prompt, max_tokens=300, n=2))

        for choice in (0, 1):
            own = [piece for piece in pieces if piece.choice == choice]
            calls = [call for piece in own if piece.extra for call in piece.extra.tool_calls or ()]
            assert calls[0].name in {"note", "tell"}
            assert own[-1].finish is Finish.TOOL_CALLS
            assert {"name", "old"} == set(json.loads("".join(call.arguments for call in calls)))

    vllm_rig.run(scenario())


def test_a_model_without_tools_in_its_template_has_no_free_choice(vllm_rig: EngineRig):
    refusal = refused(vllm_rig, job_of(chat("hi", tools_json=ANY_TOOL)))

    assert (RefuseReason.UNSUPPORTED, "tools") == (refusal.reason, refusal.param)
    assert vllm_rig.run(
        vllm_rig.text(chat("hi", tools_json=ANY_TOOL, tool_choice="none"), max_tokens=2)
    )


CALL_TEXT = 'Sure.<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>'


def test_vllms_parser_finds_the_calls_that_a_model_makes(vllm_rig: EngineRig):

    tokenizer = tokenizer_of(vllm_rig)
    shape = shape_of(
        job_of(chat("hi", tools_json=ANY_TOOL)), ToolParser("hermes", tokenizer), shows_tools=True
    )
    listener = shape.new_listener()
    ids = tokenizer(CALL_TEXT)["input_ids"]

    said = [
        listener.hear(tokenizer.decode([each]), [each], is_last=place == len(ids) - 1)
        for place, each in enumerate(ids)
    ]
    calls = [call for each in said for call in each.calls]

    assert not shape.skip_special_tokens
    assert "Sure." == "".join(each.content for each in said)
    assert ("f", 0, True) == (calls[0].name, calls[0].index, calls[0].id.startswith("call_"))
    assert {"city": "Oslo"} == json.loads("".join(call.arguments for call in calls))


@pytest.mark.parametrize("name", ["nonsense", "llama3_json"])
def test_a_parser_that_does_not_go_with_the_model_stops_the_start(vllm_rig: EngineRig, name):

    with pytest.raises(EngineFailedError, match=r"vllm\.tool_call_parser"):
        ToolParser(name, tokenizer_of(vllm_rig))
