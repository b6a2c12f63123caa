"""The exact bytes of single tokens: a token can be a part of a character, which has no text of its own."""

from __future__ import annotations

import json
import re

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
"""How SentencePiece writes a space."""


class TokenBytes:
    """Looks up tokens of one tokenizer; remembers them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {
            number: token.content.encode()
            for number, token in tokenizer.get_added_tokens_decoder().items()
        }
        self._byte_of = byte_alphabet() if _is_byte_level(tokenizer) else None
        self._known: dict[int, bytes] = {}

    def of(self, token_id: int) -> bytes:
        """Return the bytes of a token; none for an id that the vocabulary only reserves."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._look_up(token_id)
        return known

    def _look_up(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id]
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        if self._byte_of is not None:
            return bytes(self._byte_of[char] for char in piece if char in self._byte_of)
        if match := _BYTE_TOKEN.fullmatch(piece):
            return bytes.fromhex(match[1])
        text: str = piece.replace(_SPACE, " ")
        return text.encode()


def byte_alphabet() -> dict[str, int]:
    """Return which byte each character of a byte-level vocabulary stands for: printable ones for themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(rest)
    }


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    if tokenizer.decoder is None:
        return False
    # Its state is its part of tokenizer.json.
    decoder = json.loads(tokenizer.decoder.__getstate__())
    return any(part["type"] == "ByteLevel" for part in (decoder, *decoder.get("decoders", ())))
