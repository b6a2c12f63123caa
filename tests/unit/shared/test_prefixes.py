"""Chains of hashes: what shares a rendered prefix shares the chain, what does not shares nothing."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.messages import ChatPrompt, TextPrompt, TokensPrompt
from shared.prefixes import (
    ENDS,
    EVEN_BYTES,
    GROWTH,
    MAX_TEXT_BYTES,
    PIECE_BYTES,
    chain_of,
    end_of,
    ends_of,
    salt_of,
    unpacked,
)

SALT = salt_of("acme", "m")
texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=3000)


def hashes(prompt, salt=SALT) -> tuple[int, ...]:
    return unpacked(chain_of(prompt, salt).hashes)


def chat(*contents: str, tools: bytes | None = None, **fields) -> ChatPrompt:
    roles = ("user", "assistant")
    turns = [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]
    return ChatPrompt(messages_json=msgspec.json.encode(turns), tools_json=tools, **fields)


def common(one, other) -> int:
    """Return how many hashes two chains share at their beginning."""
    shared = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        shared += 1
    return shared


@given(texts, texts, texts)
def test_prompts_share_the_pieces_that_lie_in_their_common_beginning(prefix, left, right):
    one, other = TextPrompt(text=prefix + left), TextPrompt(text=prefix + right)
    same = len(prefix.encode())
    while (
        same < min(len(one.text.encode()), len(other.text.encode()))
        and one.text.encode()[same] == other.text.encode()[same]
    ):
        same += 1

    shared = common(hashes(one), hashes(other))

    assert shared == sum(1 for end in ENDS[:100] if end <= same)


@given(st.lists(texts, min_size=1, max_size=4), texts)
def test_the_next_turn_begins_with_the_conversation_so_far(turns, reply):
    before, after = hashes(chat(*turns)), hashes(chat(*turns, reply))

    assert before == after[: len(before)]


@pytest.mark.parametrize(
    "other",
    [
        chat("x" * 5000, tools=b"[]"),
        chat("x" * 5000, tools=b'[{"type":"function"}]'),
        TextPrompt(text="x" * 5000),
        TokensPrompt(token_ids=[7] * 2000),
    ],
)
def test_kinds_and_tools_share_nothing(other):
    assert not set(hashes(chat("x" * 5000))) & set(hashes(other))


def test_tools_are_the_first_piece_and_shared_by_all_who_bring_them():
    tools = b'[{"type":"function","function":{"name":"f"}}]'
    one, other = chat("a" * 600, tools=tools), chat("b" * 600, tools=tools)

    chain = chain_of(one, SALT)

    assert 1 == common(hashes(one), hashes(other))
    assert len(tools) == chain.head_bytes == end_of(chain, 1)
    assert [len(tools), len(tools) + PIECE_BYTES] == ends_of(chain, 2)


def test_tools_that_the_model_does_not_see_count_for_nothing():
    assert hashes(chat("a" * 600)) == hashes(chat("a" * 600, tools=b"[1]", tool_choice="none"))


@given(texts)
def test_tenants_and_services_share_nothing(text):
    prompt = TextPrompt(text="x" * PIECE_BYTES + text)

    chains = [hashes(prompt, salt_of(*who)) for who in [("a", "m"), ("b", "m"), ("a", "n")]]

    assert len(set().union(*chains)) == sum(map(len, chains))


def test_names_that_run_together_have_different_salts():
    assert salt_of("b", "a") != salt_of("", "a b") != salt_of("a b", "")


def test_pieces_grow_so_that_a_chain_overlooks_little_and_stays_short():
    gaps = [end - start for start, end in zip([0, *ENDS], ENDS, strict=False)]

    assert all(gap <= max(PIECE_BYTES, end // GROWTH) for gap, end in zip(gaps, ENDS, strict=True))
    assert [PIECE_BYTES] * (EVEN_BYTES // PIECE_BYTES) == gaps[: EVEN_BYTES // PIECE_BYTES]
    assert ENDS[-1] >= MAX_TEXT_BYTES
    assert len(ENDS) < 400


@given(st.integers(0, 30_000), st.integers(0, 500))
def test_an_end_is_that_of_the_list(size, head):
    chain = chain_of(chat("x" * size, tools=b"t" * head or None), SALT)
    count = len(unpacked(chain.hashes))
    ends = ends_of(chain, count)

    assert ends == [end_of(chain, number) for number in range(1, count + 1)]
    assert 0 == end_of(chain, 0)
    assert not ends or ends[-1] <= chain.text_bytes


def test_token_ids_that_no_model_has_break_nothing():
    assert hashes(TokensPrompt(token_ids=[-1, 2**40] * 64))
