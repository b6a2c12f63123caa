"""What the client has of an answer, choice by choice: enough to go on elsewhere, and to know a word that comes twice. Pure."""

from __future__ import annotations

from array import array

from typing_extensions import override

from shared.messages import Delta, Finish, Prior, ToolCallDelta


class Said:
    """One choice so far. `add` is on the hot path."""

    __slots__ = ("chars", "finish", "logprobs", "texts", "token_ids", "tool_args")

    def __init__(self) -> None:
        self.token_ids = array("l")
        self.chars = 0
        self.texts: list[str] = []
        """The text itself, only while no token ids come: then there is nothing else to compare."""
        self.logprobs = 0
        """Entries with log probabilities."""
        self.tool_args: dict[int, int] = {}
        """Characters of the arguments, by index of the tool call."""
        self.finish: Finish | None = None

    @override
    def __repr__(self) -> str:
        return f"<Said {len(self.token_ids)} tokens, {self.chars} chars{' over' * self.is_over}>"

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.finish is not None

    @property
    def is_empty(self) -> bool:
        """Whether the client has nothing of it."""
        return not (self.token_ids or self.chars or self.tool_args or self.is_over)

    def add(self, delta: Delta) -> None:
        """Note what goes to the client."""
        text = delta.text
        self.chars += len(text)
        if delta.token_ids:
            self.token_ids.extend(delta.token_ids)
        elif text and not self.token_ids:
            self.texts.append(text)
        if delta.extra is not None:
            self.logprobs += len(delta.extra.logprobs or ())
            for call in delta.extra.tool_calls or ():
                self._add_call(call)
        if delta.finish is not None:
            self.finish = delta.finish

    def _add_call(self, call: ToolCallDelta) -> None:
        self.tool_args[call.index] = self.tool_args.get(call.index, 0) + len(call.arguments)


def priors(said: list[Said]) -> tuple[Prior, ...]:
    """Return the choices that go on."""
    return tuple(
        Prior(choice=choice, token_ids=one.token_ids.tolist(), chars=one.chars)
        for choice, one in enumerate(said)
        if not one.is_over
    )
