"""Subjects: exact ones, patterns, and names that cannot be part of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import UserError
from shared.ids import EngineId, GatewayId, ServiceName, StreamNo
from shared.messages import Cancel, EngineHeartbeat, EngineState, TokenBatch
from shared.subjects import MAX_TOKEN_CHARS, fields_of, fill, matches, pattern, subject_of, token

WORD = st.text(
    st.characters(exclude_categories=("Z", "C"), exclude_characters=".*>"), min_size=1, max_size=20
)


def test_a_subject_is_made_of_the_messages_fields():
    beat = EngineHeartbeat(
        engine=EngineId("e1"),
        service=ServiceName("größe-7b"),
        beat=1,
        state=EngineState.READY,
        backend="fake",
    )
    batch = TokenBatch(gateway=GatewayId("g1"), engine=EngineId("e1"), deltas=[])

    assert "hr.heartbeat.engine.größe-7b.e1" == subject_of(EngineHeartbeat)(beat)
    assert "hr.tokens.g1" == subject_of(TokenBatch)(batch)


@pytest.mark.parametrize(
    "name", ["", " ", "a.b", "a*", ">", "a b", "tab\t", "line\n", "nul\0", "\x7f", "x" * 129]
)
def test_what_cannot_be_a_token_is_refused_with_a_hint(name: str):
    with pytest.raises(UserError, match="cannot be part of a NATS subject") as refusal:
        token(name)

    assert "without spaces" in refusal.value.hint


@given(WORD)
def test_a_word_is_a_token(word: str):
    assert word == token(word)


def test_the_longest_token_is_taken():
    assert token("x" * MAX_TOKEN_CHARS)


def test_a_message_with_an_illegal_id_has_no_subject():
    cancel = Cancel(engine=EngineId("e.1"), gateway=GatewayId("g"), stream=StreamNo(1))

    with pytest.raises(UserError):
        subject_of(Cancel)(cancel)


def test_fields_that_are_not_fixed_become_stars():
    assert ("service", "engine") == fields_of(EngineHeartbeat)
    assert "hr.heartbeat.engine.*.e1" == pattern(EngineHeartbeat, {"engine": "e1"})
    assert "hr.dead.*" == fill("hr.dead.{service}", {})


def test_a_key_that_the_subject_has_not_is_refused():
    with pytest.raises(TypeError, match="'stream'"):
        pattern(Cancel, {"stream": "1"})


@pytest.mark.parametrize(
    ("wanted", "subject", "fits"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.c", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("*.b", "a.b", True),
    ],
)
def test_patterns_match_as_a_server_matches(wanted: str, subject: str, fits: bool):
    assert fits == matches(wanted.split("."), subject.split("."))


@given(st.lists(WORD, min_size=1, max_size=5), st.data())
def test_a_subject_matches_every_pattern_made_of_it(parts: list[str], data: st.DataObject):
    starred = ["*" if data.draw(st.booleans()) else part for part in parts]

    assert matches(starred, parts)
    assert not matches([*starred, "more"], parts)
