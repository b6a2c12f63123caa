"""Answers that must be JSON are looked at when they are whole; nothing else is, and the client gets what it would have got."""

from __future__ import annotations

import pytest

from services.gateway.call import ApiError, Call
from services.gateway.json_watch import JsonFault, JsonWatch, watched
from shared.ids import RequestId, StreamNo
from shared.messages import Delta, Finish, Sampling, TextPrompt, Usage
from tests.support.gateway_world import Recorder

USAGE = Usage(prompt_tokens=1, completion_tokens=1)


class Failing(Recorder):
    def finish(self, usage, timing):
        return ApiError(500, "too large", kind="server_error")


def call(**shape: object) -> Call:
    prompts = (TextPrompt(text="x"),)
    return Call(kind="chat", model="m", prompts=prompts, sampling=Sampling(**shape))


def run(
    *texts: str,
    finish: Finish = Finish.STOP,
    outlet: Recorder | None = None,
    **shape: object,
) -> tuple[list[tuple[str, JsonFault]], Recorder]:
    """Play an answer, each text one choice in two pieces; return what was noted and what the client got."""
    noted: list[tuple[str, JsonFault]] = []
    inner = outlet or Recorder()
    watch = watched(call(**shape), inner, lambda service, fault: noted.append((service, fault)))
    watch.begin(RequestId("r"))
    for choice, text in enumerate(texts):
        for number, piece in enumerate((text[:3], text[3:])):
            end = finish if number else None
            watch.delta(Delta(StreamNo(1), number, choice, piece, [1], end), choice)
    watch.finish(USAGE, None)
    return noted, inner


@pytest.mark.parametrize(
    ("text", "shape", "faults"),
    [
        ('{"a": [1, 2]}', {"json_object": True}, 0),
        ('{"a": "\\ud83d\\ude00 ü"}', {"json_object": True}, 0),
        ("[1, 2, 3]", {"json_object": True}, 1),
        ("[1, 2, 3]", {"json_schema": b'{"type": "array"}'}, 0),
        ("Sure! {}", {"json_object": True}, 1),
        ('{"a": 1', {"json_schema": b"{}"}, 1),
        ('{"a": 1} {"b": 2}', {"json_schema": b"{}"}, 1),
        ('{"a": "\udc80"}', {"json_object": True}, 1),
        ("[" * 100_000, {"json_schema": b"{}"}, 1),
        ("not at all", {}, 0),
    ],
)
def test_what_is_json(text, shape, faults):
    noted, _ = run(text, **shape)

    assert [("m", JsonFault.MALFORMED)] * faults == noted


def test_a_choice_that_was_cut_off_is_told_apart():
    noted, _ = run('{"a": "and so', finish=Finish.LENGTH, json_object=True)

    assert [("m", JsonFault.CUT_OFF)] == noted


def test_each_choice_counts():
    noted, _ = run('{"a": 1}', "nonsense", "more of it", json_object=True)

    assert 2 == len(noted)


def test_tool_calls_have_no_text():
    noted, _ = run("        ", finish=Finish.TOOL_CALLS, json_object=True)

    assert [] == noted


def test_an_answer_that_could_not_be_sent_is_not_looked_at():
    noted, _ = run("nonsense", outlet=Failing(), json_object=True)

    assert [] == noted


def test_the_client_gets_all_of_it():
    _, recorder = run("nonsense", json_object=True)

    assert {0: "nonsense"} == recorder.texts
    assert USAGE == recorder.usage


def test_other_requests_are_not_touched():
    outlet = Recorder()

    assert watched(call(), outlet, lambda *_: None) is outlet
    assert isinstance(watched(call(json_object=True), outlet, lambda *_: None), JsonWatch)
