"""The bytes of the tokens of a text are the bytes of the text, also where a token is a part of a character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.adapters.token_bytes import TokenBytes, byte_alphabet
from tests.support.tiny_tokenizers import SPECIALS, byte_level, sentence_piece

TEXT = st.text(
    alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=30
)


def joined(tokenizer, text: str) -> bytes:
    lookup = TokenBytes(tokenizer)
    return b"".join(map(lookup.of, tokenizer.encode(text, add_special_tokens=False).ids))


@given(TEXT)
def test_byte_level_tokens_give_the_text(text):
    assert text.encode() == joined(byte_level(), text)


@given(TEXT.filter(bool))
def test_byte_fallback_tokens_give_the_text_with_its_first_space(text):
    expected = text if text.startswith(" ") else " " + text

    assert expected.encode() == joined(sentence_piece(), text)


def test_half_a_character_has_bytes():
    halves = byte_level().encode("🙂").ids

    assert len(halves) > 1
    assert "🙂".encode() == b"".join(map(TokenBytes(byte_level()).of, halves))


@pytest.mark.parametrize("special", SPECIALS)
def test_special_tokens_are_their_spelling(special):
    lookup = TokenBytes(byte_level())

    assert special.encode() == lookup.of(byte_level().token_to_id(special))


def test_an_id_that_the_vocabulary_only_reserves_has_no_bytes():
    assert b"" == TokenBytes(byte_level()).of(1_000_000)


def test_the_alphabet_has_each_byte_once():
    assert list(range(256)) == sorted(byte_alphabet().values())
