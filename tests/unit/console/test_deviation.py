"""Where two models think differently of the same tokens."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.console.modelcheck import tables
from services.console.modelcheck.deviation import compare, deviation, divergence
from shared.models.probe import Option, Position, Scored


def place(*probabilities: float, token: int = 0) -> Position:
    top = [Option(n, f"t{n}", math.log(each)) for n, each in enumerate(probabilities)]
    return Position(top[token], sorted(top, key=lambda option: -option.logprob))


def scored(*places: Position) -> Scored:
    return Scored(
        token_ids=[9, *(each.token.token_id for each in places)],
        prompt_tokens=1,
        positions=list(places),
    )


def test_the_same_model_deviates_nowhere():
    same = scored(place(0.6, 0.3), place(0.9, 0.05))

    told = compare(same, same, chosen=range(1, 3), threshold=0.5)

    assert (None, 0.0, []) == (told.begins_at, told.mean_kl, told.other_tokens)


def test_it_begins_where_the_threshold_is_first_passed_and_the_largest_is_told():
    ours = scored(place(0.5, 0.4), place(0.8, 0.1), place(0.9, 0.02))
    theirs = scored(place(0.5, 0.4), place(0.4, 0.5), place(0.1, 0.8))

    told = compare(ours, theirs, chosen=range(1, 4), threshold=0.5)

    assert 2 == told.begins_at
    assert told.largest is not None
    assert 3 == told.largest.number


def test_tokens_that_neither_expects_are_noise():
    assert 0.0 == deviation(place(0.9, 1e-4), place(0.9, 1e-6))


def test_a_token_that_the_other_does_not_tell_is_no_likelier_than_its_last():
    ours = Position(Option(5, "x", math.log(0.5)), [Option(5, "x", math.log(0.5))])

    assert deviation(ours, place(0.5, 0.1)) == pytest.approx(math.log(0.5 / 0.1))


def test_the_divergence_is_that_of_the_whole_where_all_is_told():
    p, q = (0.7, 0.3), (0.5, 0.5)
    whole = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    assert divergence(place(*p), place(*q)) == pytest.approx(whole)


@given(
    st.lists(st.floats(0.001, 1.0), min_size=3, max_size=8),
    st.lists(st.floats(0.001, 1.0), min_size=3, max_size=8),
    st.integers(1, 3),
)
def test_what_is_told_of_a_part_is_never_more_than_the_divergence_of_the_whole(left, right, told):
    size = min(len(left), len(right))
    p = [each / sum(left[:size]) for each in left[:size]]
    q = [each / sum(right[:size]) for each in right[:size]]
    whole = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    part = divergence(place(*p[:told]), place(*q[:told]))

    assert -1e-9 <= part <= whole + 1e-9


def test_tokens_that_are_another_text_for_the_reference_are_told():
    ours, theirs = scored(place(0.9)), scored(Position(Option(0, "other", -0.1), []))

    assert [0] == compare(ours, theirs, chosen=range(1, 2), threshold=0.5).other_tokens


def test_the_first_token_of_all_is_left_out():
    assert [1] == [
        each.number
        for each in compare(scored(place(0.9)), None, chosen=range(2), threshold=1).places
    ]


def test_the_table_stands_both_side_by_side_and_says_where_it_begins():
    told = compare(
        scored(place(0.5, 0.4)), scored(place(0.1, 0.8)), chosen=range(1, 2), threshold=0.5
    )

    shown = tables.comparison(told, model="a", reference="b", top=2)

    assert "'t0'" in shown
    assert "left: a, right: b" in shown
    assert "deviates by more than 0.5 nat from position 1 on" in shown


def test_without_a_reference_the_table_has_one_side():
    told = compare(scored(place(0.5, 0.4)), None, chosen=range(1, 2), threshold=0.5)

    assert "left:" not in tables.comparison(told, model="a", reference="", top=2)
