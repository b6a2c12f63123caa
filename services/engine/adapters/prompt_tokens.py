"""Text to token ids, with one rule: a control token comes from the template, never from what a user wrote.

User text that spells a special token is marked before rendering, with a character that occurs nowhere else in the request.
After rendering the specials without a mark are the template's own. They become aliases: random strings that only this tokenizer
knows as tokens. Then the marks go, and one pass of the tokenizer encodes everything: aliases to control tokens, the rest to text.
So ordinary text, white space rules and merges across the borders of messages come out exactly as without all this.

It relies on templates that trim, fold case, slice, join or dump as JSON what they are given. One that deletes characters from the
middle of user text could still join two halves of a special; none is known. Added tokens that are not special (`<think>`) stay as they are.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, Tokenizer

_FIRST_MARK = 0xE000
_LAST_MARK = 0xF8FF
"""The private use area of Unicode: 6,400 characters without a meaning."""


class NoMarkError(ValueError):
    """The request uses every private character that there is."""


class Specials:
    """The strings of a tokenizer's special tokens, and where they occur in text."""

    def __init__(self, specials: Iterable[str], others: Iterable[str] = ()) -> None:
        self._specials = sorted(specials, key=len, reverse=True)
        self._any = _either([*self._specials, *others])
        # Case is folded, for templates that do so.
        self._inside = _either(self._specials, flags=re.IGNORECASE, is_lookahead=True)
        folded = [special.lower() for special in self._specials]
        self._heads = {text[:size] for text in folded for size in range(1, len(text))}
        self._tails = {text[size:] for text in folded for size in range(1, len(text))}
        self._reach = max(map(len, folded), default=1) - 1

    def cuts(self, text: str) -> list[int]:
        """Return the places where a mark keeps a special from being read: in each one, and at an end that is a part of one."""
        cuts = (
            [match.start() + 1 for match in self._inside.finditer(text)] if self._specials else []
        )
        folded = text[: self._reach].lower()
        if any(folded[:size] in self._tails for size in range(1, len(folded) + 1)):
            cuts.insert(0, 0)
        folded = text[-self._reach :].lower() if self._reach else ""
        if any(folded[size:] in self._heads for size in range(len(folded))):
            cuts.append(len(text))
        return cuts

    def replace(self, text: str, names: dict[str, str]) -> str:
        """Return the text with each special replaced by its name there; longest match first, as tokenizers do."""
        return self._any.sub(lambda match: names.get(match[0], match[0]), text)


class Marker:
    """Marks the strings of one request."""

    def __init__(self, specials: Specials, values: Iterable[Any]) -> None:
        self._specials = specials
        self._values = list(values)
        self.mark = ""

    def marked(self) -> list[Any]:
        """Return the JSON values with the strings in them marked, keys too. Raises `NoMarkError`."""
        texts = [text for value in self._values for text in _strings(value)]
        if not any(self._specials.cuts(text) for text in texts):
            return self._values
        everything = "\n".join(texts)
        used = {*everything, *_escaped_marks(everything)}
        codes = range(_FIRST_MARK, _LAST_MARK + 1)
        self.mark = next((char for char in map(chr, codes) if char not in used), "")
        if not self.mark:
            raise NoMarkError(
                "the messages use every private-use character of Unicode; leave one out"
            )
        return [self._mark(value) for value in self._values]

    def cleared(self, text: str) -> str:
        """Return rendered text without marks, also where a template wrote them as JSON escapes."""
        if not self.mark:
            return text
        return text.replace(self.mark, "").replace(json.dumps(self.mark)[1:-1], "")

    def _mark(self, value: Any) -> Any:
        match value:
            case str():
                return self._mark_text(value)
            case list():
                return [self._mark(item) for item in value]
            case dict():
                return {self._mark_text(key): self._mark(item) for key, item in value.items()}
            case _:
                return value

    def _mark_text(self, text: str) -> str:
        for cut in reversed(self._specials.cuts(text)):
            text = text[:cut] + self.mark + text[cut:]
        return text


class PromptTokenizer:
    """A tokenizer that knows its special tokens by alias as well."""

    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        specials = {token.content: number for number, token in added.items() if token.special}
        self.specials = Specials(
            specials, [token.content for token in added.values() if not token.special]
        )
        # Nobody can write what nobody knows; no private characters, which are marks.
        nonce = secrets.token_hex(16)
        self._aliases = {content: f"<{nonce}:{number:x}>" for content, number in specials.items()}
        self._tokenizer.add_tokens(
            [_like(added[number], self._aliases[content]) for content, number in specials.items()]
        )
        self._number_of_alias = {
            self._tokenizer.token_to_id(alias): specials[content]
            for content, alias in self._aliases.items()
        }

    def encode_rendered(self, text: str, marker: Marker) -> list[int]:
        """Return the tokens of rendered text whose user strings the marker marked."""
        aliased = marker.cleared(self.specials.replace(text, self._aliases))
        self._tokenizer.encode_special_tokens = True
        ids: list[int] = self._tokenizer.encode(aliased, add_special_tokens=False).ids
        number_of = self._number_of_alias
        return [number_of.get(number, number) for number in ids]

    def encode_raw(self, text: str) -> list[int]:
        """Return the tokens of text in which special tokens count, with those that the model wants at the start or the end."""
        self._tokenizer.encode_special_tokens = False
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=True).ids
        return ids


def _escaped_marks(text: str) -> Iterable[str]:
    """Return the private characters that the text has as JSON escapes."""
    return (chr(int(digits, 16)) for digits in re.findall(r"\\u([ef][0-9a-f]{3})", text))


def _like(token: AddedToken, content: str) -> AddedToken:
    """Return a token of another spelling that takes white space around it in the same way."""
    return AddedToken(
        content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=False,
        special=False,
    )


def _strings(value: Any) -> Iterable[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _strings(item)
        case dict():
            for key, item in value.items():
                yield key
                yield from _strings(item)
        case _:
            return


def _either(texts: list[str], *, flags: int = 0, is_lookahead: bool = False) -> re.Pattern[str]:
    """Return a pattern for any of the texts, longest first; the class of first characters makes a miss cheap."""
    if not texts:
        return re.compile(r"(?!)")
    first = "".join(sorted({re.escape(text[0]) for text in texts}))
    alternatives = "|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True))
    body = f"(?=[{first}])(?:{alternatives})"
    return re.compile(f"(?={body})" if is_lookahead else body, flags)
