"""A second answer is freed of what the client has of the first, however both were cut into deltas."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.call import Call
from services.gateway.continuation import DivergedError, Replay, Way, is_exact, ways_of
from services.gateway.said import Said, priors
from shared.ids import StreamNo
from shared.messages import (
    ChatPrompt,
    Delta,
    DeltaExtra,
    Finish,
    Sampling,
    TextPrompt,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)

TEXT = TextPrompt(text="x")
TOOLS = ChatPrompt(messages_json=b"[]", tools_json=b"[{}]")
USAGE = Usage(prompt_tokens=1, completion_tokens=9)


def delta(text="", tokens=(), finish=None, extra=None, *, choice=0, seq=0) -> Delta:
    return Delta(StreamNo(1), seq, choice, text, list(tokens), finish, extra)


def call_with(**fields) -> Call:
    own = fields.pop("has_own_seed", False)
    return Call(
        kind="completion", model="m", prompts=(TEXT,), sampling=Sampling(**fields), has_own_seed=own
    )


def cut(tokens: list[int], places: list[int]) -> list[Delta]:
    """Return an answer in deltas: token i has the text `<i>`; cuts may leave a delta empty."""
    edges = [0, *sorted(place % (len(tokens) + 1) for place in places), len(tokens)]
    deltas = []
    for start, end in itertools.pairwise(edges):
        piece = tokens[start:end]
        logprobs = [TokenLogprob(str(t), -0.5, b"", []) for t in piece]
        calls = [
            ToolCallDelta(index=0, id=f"call_{len(places)}", arguments=f"[{t}]") for t in piece
        ]
        extra = DeltaExtra(logprobs=logprobs or None, tool_calls=calls or None)
        text = "".join(f"<{token}>" for token in piece)
        deltas.append(delta(text, piece, extra=extra if piece else None))
    deltas.append(delta(finish=Finish.STOP, extra=DeltaExtra(usage=USAGE)))
    return deltas


def content(deltas: list[Delta]) -> tuple[object, ...]:
    extras = [one.extra for one in deltas if one.extra is not None]
    return (
        "".join(one.text for one in deltas),
        [token for one in deltas for token in one.token_ids],
        [entry.token for extra in extras for entry in extra.logprobs or ()],
        "".join(call.arguments for extra in extras for call in extra.tool_calls or ()),
        [one.finish for one in deltas if one.finish],
        [extra.usage for extra in extras if extra.usage],
    )


def said_after(deltas: list[Delta]) -> list[Said]:
    said = [Said()]
    for one in deltas:
        said[0].add(one)
    return said


TOKENS = st.lists(st.integers(0, 999), max_size=30)
PLACES = st.lists(st.integers(0, 100), max_size=8)


@given(tokens=TOKENS, first=PLACES, second=PLACES, lost_at=st.integers(0, 20))
def test_both_parts_together_are_the_answer(tokens, first, second, lost_at):
    whole = cut(tokens, first)
    shown = whole[: min(lost_at, len(whole) - 1)]
    replay = Replay(said_after(shown))

    news = [new for one in cut(tokens, second) if (new := replay.news(one)) is not None]

    assert content(whole) == content([*shown, *news])
    assert replay.is_caught_up


@given(tokens=st.lists(st.integers(0, 9), min_size=1), at=st.integers(0, 99), places=PLACES)
def test_another_token_is_noticed_before_anything_new_comes(tokens, at, places):
    said = said_after(cut(tokens, places)[:-1])
    other = list(tokens)
    other[at % len(tokens)] += 1
    replay = Replay(said)

    def all_of_it() -> list[Delta | None]:
        return [replay.news(one) for one in cut([*other, 5, 6], [at])]

    with pytest.raises(DivergedError):
        all_of_it()


def test_an_answer_that_ends_earlier_is_another_one():
    replay = Replay(said_after([delta("a", [1]), delta("b", [2])]))
    replay.news(delta("a", [1]))

    with pytest.raises(DivergedError):
        replay.news(delta(finish=Finish.STOP, extra=DeltaExtra(usage=USAGE)))


def test_where_no_tokens_are_told_the_texts_are_compared():
    replay = Replay(said_after([delta("Hel"), delta("lo ")]))

    assert replay.news(delta("Hello")) is None
    assert replay.news(delta(" wo")) == delta("wo")
    with pytest.raises(DivergedError):
        Replay(said_after([delta("Hel")])).news(delta("Heaven"))


def test_a_choice_that_has_ended_ends_only_the_stream():
    said = [Said(), Said()]
    said[0].add(delta("a", [1], Finish.STOP))
    said[1].add(delta("b", [2], choice=1))
    replay = Replay(said)

    assert replay.news(delta("b", [2], choice=1)) is None
    assert replay.news(delta("c", [3], Finish.STOP, choice=1)) == delta(
        "c", [3], Finish.STOP, choice=1
    )
    end = replay.news(delta("a", [1], Finish.STOP, DeltaExtra(usage=USAGE)))
    assert end == delta(extra=DeltaExtra(usage=USAGE))


def test_a_known_tool_call_keeps_its_id():
    head = DeltaExtra(tool_calls=[ToolCallDelta(index=0, id="call_1", name="f")])
    other = DeltaExtra(tool_calls=[ToolCallDelta(index=0, id="call_2", name="f", arguments="{")])
    replay = Replay(said_after([delta(tokens=[1], extra=head)]))

    new = replay.news(delta(tokens=[1], extra=other))

    assert new is not None
    assert new.extra == DeltaExtra(tool_calls=[ToolCallDelta(index=0, arguments="{")])


@pytest.mark.parametrize(
    ("call", "prompt", "best", "exact"),
    [
        (call_with(temperature=0.0), TEXT, Way.RESUME, True),
        (call_with(temperature=0.0, logprobs=1, stop=("x",)), TEXT, Way.RESUME, True),
        (call_with(temperature=0.0, repetition_penalty=1.2), TEXT, Way.RESUME, True),
        (call_with(temperature=0.0, has_own_seed=True), TEXT, Way.RESUME, True),
        (call_with(), TEXT, Way.RESUME, False),
        (call_with(temperature=1.0), TEXT, Way.RESUME, False),
        (call_with(temperature=1.0, has_own_seed=True), TEXT, Way.REPLAY, True),
        (call_with(temperature=0.0, presence_penalty=0.1), TEXT, Way.REPLAY, True),
        (call_with(temperature=0.0, frequency_penalty=0.1), TEXT, Way.REPLAY, True),
        (call_with(json_object=True), TEXT, Way.REPLAY, True),
        (call_with(json_schema=b"{}"), TEXT, Way.REPLAY, True),
        (call_with(temperature=0.0), TOOLS, Way.REPLAY, True),
    ],
)
def test_the_way_is_the_quick_one_where_it_loses_nothing(call, prompt, best, exact):
    way = ways_of(call, prompt, said_after([delta("a", [1])]))[0]

    assert best is way
    assert exact is is_exact(call, way)


def test_a_penalized_answer_that_cannot_be_replayed_may_go_on_inexactly():
    call = call_with(temperature=0.0, presence_penalty=0.5)

    assert [Way.REPLAY, Way.RESUME] == ways_of(call, TEXT, said_after([delta("a", [1])]))
    assert not is_exact(call, Way.RESUME)


def test_nothing_is_resumed_whose_tokens_are_unknown():
    assert [Way.REPLAY] == ways_of(call_with(temperature=0.0), TEXT, said_after([delta("a")]))


def test_only_choices_that_go_on_are_handed_over():
    said = [Said(), Said()]
    said[0].add(delta("ab", [1, 2], Finish.LENGTH))
    said[1].add(delta("c", [3], choice=1))

    (prior,) = priors(said)

    assert (1, [3], 1) == (prior.choice, prior.token_ids, prior.chars)
