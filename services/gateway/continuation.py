"""How an answer goes on when its engine is lost. Pure.

Resume: the next engine reads what was said and goes on behind it. Quick, and exact where a token depends on the tokens before it alone.
Replay: the next engine answers from the beginning, and what the client has already is compared and left out. As exact as the engine
is repeatable, at the cost of saying it all again: for whatever needs state that cannot be handed over.
"""

from __future__ import annotations

from enum import StrEnum

from services.gateway.call import Call
from services.gateway.said import Said
from shared.messages import ChatPrompt, Delta, DeltaExtra, Prompt, TokenLogprob, ToolCallDelta


class Way(StrEnum):
    """How to go on."""

    RESUME = "resume"
    REPLAY = "replay"


class DivergedError(Exception):
    """The answer that was begun again differs from the one that the client has."""


def ways_of(call: Call, prompt: Prompt, said: list[Said]) -> list[Way]:
    """Return the ways to go on, the best first: the quick one where it loses nothing, else the exact one."""
    ways = [Way.REPLAY]
    if _has_shape(call, prompt) or not _can_resume(said):
        return ways
    sampling = call.sampling
    is_penalized = sampling.presence_penalty or sampling.frequency_penalty
    follows_seed = call.has_own_seed and not _is_greedy(call)
    ways.insert(1 if is_penalized or follows_seed else 0, Way.RESUME)
    return ways


def is_exact(call: Call, way: Way) -> bool:
    """Return whether the answer is the one that would have come without the loss; else it is another that is as likely."""
    sampling = call.sampling
    is_penalized = sampling.presence_penalty or sampling.frequency_penalty
    return way is Way.REPLAY or (_is_greedy(call) and not is_penalized)


def _has_shape(call: Call, prompt: Prompt) -> bool:
    """Return whether the answer must keep to a grammar, or is read for calls of tools: half of one cannot be handed over."""
    sampling = call.sampling
    tools = isinstance(prompt, ChatPrompt) and prompt.tools_json and prompt.tool_choice != "none"
    return bool(tools or sampling.json_object or sampling.json_schema is not None)


def _can_resume(said: list[Said]) -> bool:
    """Return whether all tokens of what was said are known, and something is left to say."""
    return not any(one.texts for one in said) and not all(one.is_over for one in said)


def _is_greedy(call: Call) -> bool:
    """Return whether the most likely token is always taken, so that no random number is drawn."""
    return call.sampling.temperature == 0.0


class Replay:
    """Takes out of a second answer what the client has of the first. Raises `DivergedError` where they differ."""

    def __init__(self, said: list[Said]) -> None:
        self._said = said
        self._seen = [Said() for _ in said]

    @property
    def is_caught_up(self) -> bool:
        """Whether all that comes from now on is new."""
        return all(
            one.is_over or _reaches(seen, one)
            for one, seen in zip(self._said, self._seen, strict=True)
        )

    def news(self, delta: Delta) -> Delta | None:
        """Return what of a delta is new to the client; none where nothing is."""
        said, seen = self._said[delta.choice], self._seen[delta.choice]
        if said.is_over:
            return _only_end(delta)
        skip_chars = max(0, said.chars - seen.chars)
        skip_logprobs = max(0, said.logprobs - seen.logprobs)
        skip_args = {
            index: chars - seen.tool_args.get(index, 0) for index, chars in said.tool_args.items()
        }
        token_ids = self._new_tokens(delta, said, seen)
        _compare_text(delta, said, seen)
        seen.add(delta)
        if delta.finish is not None and not _reaches(seen, said):
            raise DivergedError("it ended earlier")
        text = delta.text[skip_chars:]
        extra = _new_extra(delta.extra, skip_logprobs, skip_args)
        if not (text or token_ids or delta.finish is not None or extra is not None):
            return None
        return Delta(delta.stream, delta.seq, delta.choice, text, token_ids, delta.finish, extra)

    def _new_tokens(self, delta: Delta, said: Said, seen: Said) -> list[int]:
        """Return the tokens beyond those that the client has, which must be the same."""
        at = len(seen.token_ids)
        old = said.token_ids[at : at + len(delta.token_ids)].tolist()
        if delta.token_ids[: len(old)] != old:
            raise DivergedError("a token differs")
        return delta.token_ids[len(old) :]


def _reaches(seen: Said, said: Said) -> bool:
    return (
        len(seen.token_ids) >= len(said.token_ids)
        and seen.chars >= said.chars
        and seen.logprobs >= said.logprobs
        and all(seen.tool_args.get(index, -1) >= chars for index, chars in said.tool_args.items())
    )


def _compare_text(delta: Delta, said: Said, seen: Said) -> None:
    """Compare texts where there are no token ids to compare."""
    if not said.texts:
        return
    told = "".join(said.texts)
    said.texts[:] = [told]
    here = told[seen.chars : seen.chars + len(delta.text)]
    if delta.text[: len(here)] != here:
        raise DivergedError("the text differs")


def _only_end(delta: Delta) -> Delta | None:
    """Return what ends the stream, of a choice that has ended for the client."""
    if delta.extra is None or delta.extra.usage is None:
        return None
    extra = DeltaExtra(usage=delta.extra.usage)
    return Delta(delta.stream, delta.seq, delta.choice, "", [], None, extra)


def _new_extra(
    extra: DeltaExtra | None, skip_logprobs: int, skip_args: dict[int, int]
) -> DeltaExtra | None:
    if extra is None:
        return None
    logprobs: list[TokenLogprob] | None = (extra.logprobs or [])[skip_logprobs:] or None
    calls = [
        new for call in extra.tool_calls or () if (new := _new_call(call, skip_args)) is not None
    ]
    if not (logprobs or calls or extra.stop_reason is not None or extra.usage or extra.error):
        return None
    return DeltaExtra(
        logprobs=logprobs,
        tool_calls=calls or None,
        stop_reason=extra.stop_reason,
        usage=extra.usage,
        error=extra.error,
    )


def _new_call(call: ToolCallDelta, skip_args: dict[int, int]) -> ToolCallDelta | None:
    """Return what is new of a piece; a call that the client knows keeps the id it had."""
    if call.index not in skip_args:
        return call
    skip = max(0, skip_args[call.index])
    skip_args[call.index] = max(0, skip - len(call.arguments))
    arguments = call.arguments[skip:]
    return ToolCallDelta(index=call.index, arguments=arguments) if arguments else None
