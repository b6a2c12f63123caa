"""vLLM's outputs to our pieces, at once and in vLLM's own loop turn: no queue, task or wake-up per token.

`ChoiceOutput` takes the place of vLLM's collector of one request; it hands each output to the `Answer` it belongs to.
All choices of an answer are requests of their own, so each can end, or be continued elsewhere, by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

from typing_extensions import override
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.output_processor import RequestOutputCollector

from services.engine.adapters.token_bytes import TokenBytes
from services.engine.adapters.tool_calls import Listener
from services.engine.adapters.vllm_steps import StepGate
from services.engine.ports import Piece, Sink, told
from shared import logs
from shared.messages import (
    DeltaExtra,
    Finish,
    Spent,
    StreamError,
    TokenLogprob,
    TopLogprob,
    Usage,
)

LEAST_LOGPROB = -9999.0
"""What OpenAI gives for tokens that can't come: JSON has no infinity."""

_FINISH = {"stop": Finish.STOP, "length": Finish.LENGTH, "repetition": Finish.STOP}

_log = logs.get("vllm")


class ChoiceOutput(RequestOutputCollector):
    """Where vLLM puts the outputs of one choice."""

    def __init__(self, answer: Answer, choice: int, request_id: str) -> None:
        super().__init__(RequestOutputKind.DELTA, request_id)
        self._answer = answer
        self._choice = choice

    @override
    def put(self, output: RequestOutput | Exception) -> None:
        """Take an output. Never raises: that would end vLLM's output loop. The end of that loop is noticed elsewhere."""
        if not isinstance(output, Exception):
            self._answer.take(self._choice, output)


class Answer:
    """One job in vLLM: its requests, and what has come of each."""

    def __init__(
        self, key: str, sink: Sink, gate: StepGate, *, on_end: Callable[[str, bool], None]
    ) -> None:
        """`on_end` is told the key, and whether all requests have ended by themselves."""
        self._key = key
        self._sink = sink
        self._gate = gate
        self._on_end = on_end
        self.request_ids: dict[int, str] = {}
        """vLLM's ids of the choices that were submitted."""
        self.is_over = False
        """Nothing may come any more: it ended, failed, or was cancelled."""
        self._open: set[int] = set()
        self._has_begun = False
        """Whether the first piece is out."""
        self._is_complete = False
        """Whether the last piece waits."""
        self._waits = True
        """Whether pieces wait for the record of their step: the first, the last, and what comes between."""
        self._held: list[Piece] = []
        self._ended: list[int] = []
        """Choices that ended in the step whose record is to come."""
        self.completion_tokens = 0
        self._listeners: list[Listener] | None = None

    def expect(
        self,
        choices: int,
        prompt_tokens: int,
        *,
        token_bytes: TokenBytes,
        top: int | None,
        still_open: Collection[int],
    ) -> None:
        """Get ready for the outputs; `top` is the number of alternatives wanted, if log probabilities are."""
        self._prompt_tokens = prompt_tokens
        self._token_bytes = token_bytes
        self._top = top
        self._has_called = [False] * choices
        self._open = set(still_open)
        self._cached_tokens = prompt_tokens

    def listen(self, listeners: list[Listener]) -> None:
        """Look for tool calls in the text of each choice."""
        self._listeners = listeners

    @property
    def open_choices(self) -> int:
        """Choices that vLLM has and has not ended."""
        return len(self._open) if self.request_ids else 0

    @override
    def __repr__(self) -> str:
        return f"<Answer {self._key} {'over' if self.is_over else self.request_ids}>"

    def say(self, choice: int, text: str) -> None:
        """Tell the sink what came of no output."""
        if text:
            self._hold(Piece(choice, text, []))

    def release(self) -> None:
        """Hand out what waited for the record of its step."""
        if self.is_over:
            return
        held, self._held = self._held, []
        for choice in self._ended:
            self._gate.book.end_choice(self.request_ids[choice])
        self._ended = []
        if not held:
            return
        if not self._has_begun:
            self._has_begun = True
            self._gate.begin(self._key)
            held[0] = told(held[0], self._spent())
        is_last, self._waits = self._is_complete, False
        if is_last:
            if len(held) > 1 or held[0].extra is None or held[0].extra.spent is None:
                held[-1] = told(held[-1], self._spent())
            self._end(is_whole=True)
        for piece in held:
            self._sink(self._key, piece)

    def take(self, choice: int, output: RequestOutput) -> None:
        """Tell the sink what an output has."""
        if self.is_over or self._is_complete:
            return
        try:
            self._take(choice, output)
        except Exception as error:  # noqa: BLE001 - a parser may stumble over any text; only this answer is lost
            # Not the message: it may quote the text.
            _log.error("output_lost", key=self._key, error=type(error).__name__)
            self.fail("the engine could not read the model's output", retryable=False)

    def fail(self, message: str, *, retryable: bool = True, param: str | None = None) -> None:
        """End the answer with an error, unless it is over."""
        if self.is_over:
            return
        was_complete = self._is_complete
        self.release()
        if was_complete:
            return
        still_open = sorted(self._open)
        error = StreamError(message=message, retryable=retryable, param=param)
        extra = DeltaExtra(error=error, spent=self._spent())
        self._end(is_whole=False)
        for choice in still_open:
            last = extra if choice == still_open[-1] else None
            self._sink(self._key, Piece(choice, "", [], Finish.ERROR, last))

    def _take(self, choice: int, output: RequestOutput) -> None:
        completion = output.outputs[0]
        reason = completion.finish_reason
        self.completion_tokens += len(completion.token_ids)
        if reason is None and self._top is None and self._listeners is None:
            piece = Piece(choice, completion.text, completion.token_ids)
            if self._waits:
                self._hold(piece)
            else:
                self._sink(self._key, piece)
            return
        self._take_rest(choice, output, completion)

    def _take_rest(self, choice: int, output: RequestOutput, completion: CompletionOutput) -> None:
        reason = completion.finish_reason
        text = completion.text
        extra: dict[str, Any] = {}
        if self._listeners is not None:
            said = self._listeners[choice].hear(
                text, completion.token_ids, is_last=reason is not None
            )
            text = said.content
            if said.calls:
                self._has_called[choice] = True
                extra["tool_calls"] = said.calls
        if self._top is not None:
            extra["logprobs"] = self._logprobs(completion)
        finish = None if reason is None else self._finish(choice, output, completion, extra)
        if finish is Finish.ERROR:
            self.fail(f"vLLM ended the answer ({reason})")
            return
        token_ids = completion.token_ids
        piece = Piece(choice, text, token_ids, finish, DeltaExtra(**extra) if extra else None)
        if self._waits or finish is not None:
            self._hold(piece)
        else:
            self._sink(self._key, piece)

    def _finish(
        self,
        choice: int,
        output: RequestOutput,
        completion: CompletionOutput,
        extra: dict[str, Any],
    ) -> Finish:
        """Note the end of a choice; the last one gets the usage."""
        finish = _FINISH.get(completion.finish_reason or "", Finish.ERROR)
        if finish is Finish.ERROR:
            return finish
        if finish is Finish.STOP and self._has_called[choice]:
            finish = Finish.TOOL_CALLS
        if completion.stop_reason is not None:
            extra["stop_reason"] = completion.stop_reason
        self._cached_tokens = min(self._cached_tokens, output.num_cached_tokens or 0)
        self._open.discard(choice)
        self._ended.append(choice)
        if not self._open:
            self._is_complete = True
            extra["usage"] = Usage(
                prompt_tokens=self._prompt_tokens,
                completion_tokens=self.completion_tokens,
                cached_tokens=self._cached_tokens,
            )
        return finish

    def _hold(self, piece: Piece) -> None:
        """Let a piece, and all that come after it, wait for the record of its step."""
        if not self._held:
            self._waits = True
            self._gate.wait(self)
        self._held.append(piece)

    def _spent(self) -> Spent | None:
        return self._gate.spent(self._key, self.completion_tokens)

    def _end(self, *, is_whole: bool) -> None:
        self.is_over = True
        self._on_end(self._key, is_whole)

    def _logprobs(self, completion: CompletionOutput) -> list[TokenLogprob]:
        """Return the log probability of each token, and the most likely ones at its place."""
        positions = completion.logprobs or ()
        return [
            self._logprob(token_id, position)
            for token_id, position in zip(completion.token_ids, positions, strict=True)
        ]

    def _logprob(self, token_id: int, position: dict[int, Any]) -> TokenLogprob:
        top = self._top or 0
        ranked = sorted(position.items(), key=lambda item: item[1].rank)[:top]
        sampled = position[token_id]
        return TokenLogprob(
            sampled.decoded_token or "",
            finite(sampled.logprob),
            self._token_bytes.of(token_id),
            [
                TopLogprob(
                    each.decoded_token or "", finite(each.logprob), self._token_bytes.of(number)
                )
                for number, each in ranked
            ],
        )


def finite(logprob: float) -> float:
    """Return a number that JSON has; NaN counts as a token that can't come."""
    return max(logprob, LEAST_LOGPROB) if math.isfinite(logprob) else LEAST_LOGPROB
