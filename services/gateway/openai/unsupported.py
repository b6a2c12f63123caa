"""OpenAI's fields that are known and not obeyed: each may have its harmless value and nothing else.

A value is harmless where obeying it and ignoring it give the same answer.
`prompt_cache_key` and `safety_identifier` are no part of this: they are labels, any value of them is harmless.
"""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from services.gateway.call import invalid


class Unsupported(NamedTuple):
    """Why a field is refused, and which values of it ask for nothing."""

    reason: str
    harmless: tuple[object, ...] = ()


class Table(dict[str, Unsupported]):
    """The fields of one kind of body, with a quick look at all of them."""

    def __init__(self, fields: dict[str, Unsupported]) -> None:
        super().__init__(fields)
        self.read = attrgetter(*fields)
        self.absent = (UNSET,) * len(fields)


CHAT = Table(
    {
        "audio": Unsupported("answers are text"),
        "function_call": Unsupported("use `tool_choice`", ("none",)),
        "functions": Unsupported("use `tools`", ([],)),
        "metadata": Unsupported("answers are not stored", ({},)),
        "modalities": Unsupported("answers are text", (["text"],)),
        "moderation": Unsupported("there is no moderation model"),
        "prediction": Unsupported("predicted outputs are not available"),
        "prompt_cache_options": Unsupported(
            "prefixes are cached automatically, without breakpoints or a promised lifetime",
            ({}, {"mode": "implicit"}),
        ),
        "prompt_cache_retention": Unsupported(
            "prefixes are cached in memory for as long as there is room", ("in_memory",)
        ),
        "reasoning_effort": Unsupported("it is the model's own"),
        "store": Unsupported("answers are not stored", (False,)),
        "verbosity": Unsupported("say it in the prompt", ("medium",)),
        "web_search_options": Unsupported("there is no web search"),
    }
)

COMPLETION = Table(
    {
        "echo": Unsupported("the prompt is not repeated in the answer", (False,)),
        "suffix": Unsupported("text is only continued, not filled in", ("",)),
    }
)


Undecoded = Raw | UnsetType
"""The type of such a field: nothing of it is decoded before it is known to be short."""

MAX_HARMLESS_BYTES = 64


def refuse_unsupported(body: msgspec.Struct, table: Table) -> None:
    """Raise for the first field of the table that asks for something."""
    if table.read(body) == table.absent:
        return
    for name, entry in table.items():
        value = getattr(body, name)
        if value is not UNSET and not _is_harmless(value, entry):
            raise invalid(
                f"`{name}` is not supported: {entry.reason}.",
                param=name,
                code="unsupported_parameter",
            )


def _is_harmless(raw: Raw, entry: Unsupported) -> bool:
    if len(bytes(raw)) > MAX_HARMLESS_BYTES:
        return False
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError:  # skipped unread until now: broken UTF-8, a number out of range
        return False
    # The type as well, since 0 == False.
    return value is None or any(
        type(value) is type(fine) and value == fine for fine in entry.harmless
    )
