"""The accounts of an engine: each moment of each stream at it, in exactly one stage, from what its backend says of its steps.

The rules, step by step (step k ends at end(k); sched(k) is when it was made, with asynchronous stepping before end(k-1)):

- A stream goes on from step to step: step k is for it the time from end(k-1) to end(k). One that is new in step k was waiting
  (`queue`, or `kv_load` while its blocks came from a lower tier) until the later of sched(k) and end(k-1), and is in `prefill` then.
- A choice that decodes in a step without prompts of others: all of it is `decode`. In a step with prompts `decode` is what a
  decode-only step of that batch would take (`steps.decode_time`; until one was seen, the decodes' share of the step's tokens), the rest
  is `decode_wait`, and the largest prompt in the step is to blame for it.
- After its first token a choice that was preempted, is computed again, or keeps its place but is not in the step, is in `decode_wait`;
  before its first token it is in `queue`, and in `prefill` while it is computed, for the first time or again.
- Of several choices of one stream, at each instant the first of `decode`, `prefill`, `decode_wait`, `kv_load`, `queue` that one of them
  is in counts. So a stream that decodes in a step with a prompt of its own is in `prefill` for the rest of that step.
- After the last token it is in `output_parse`, and until its choices have been handed to the backend in `tokenize`.

A choice that decodes as it did is not touched: two running sums serve all of them, and a stream reads them where it leaves that state.
So a step costs the same whatever its batch, plus a little for each prompt, preemption or pause in it.

Between two steps the account of a stream is an estimate (`spent` for one that is cut off): what the step under way is doing is not known
before its end, so a first chunk under way counts as `queue`, and of a decode under way what exceeds a decode-only step as `decode_wait`.
"""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import override

from services.engine.steps.account import (
    DECODE,
    OUTPUT_PARSE,
    QUEUE,
    TOKENIZE,
    WIRE_OFFSET,
    Account,
    Choice,
)
from services.engine.steps.charging import Charging
from services.engine.steps.log import Life, StepLog
from services.engine.steps.news import StepNews
from services.engine.steps.recent import Recent
from services.engine.steps.step import Span, Step, us_of
from services.engine.steps.sums import Sums
from shared.ids import EngineId, RequestId
from shared.messages import (
    ENGINE_STAGES,
    STAGES,
    Move,
    Spent,
    Stage,
    StepDetail,
    StepSummary,
)

KEPT_NAMES = 4096
"""Choices that were cut off whose request is still known: the step under way may hold others up for their sake."""
MOST_PLAIN = 64
"""Plain steps that wait to be accounted for together at most."""
_DELIVER = STAGES.index(Stage.DELIVER)


class StepBook:
    """All accounts of one engine. Its backend writes, its shell reads."""

    def __init__(self, log: StepLog | None = None) -> None:
        self._accounts: dict[str, Account] = {}
        self._names: Recent[str, RequestId] = Recent(KEPT_NAMES)
        self._live: dict[RequestId, Account] = {}
        self._sums = Sums()
        self._news = StepNews()
        self._charging = Charging(self._sums, self._news)
        self._choices = self._charging.choices
        self._log = log or StepLog()
        self._plain: list[Step] = []
        """Steps in which nothing happened but one more token for everybody, not accounted for yet."""
        self.listeners: list[Callable[[Step], None]] = []
        """Called with each step once it is accounted for; must not raise or block."""

    @override
    def __repr__(self) -> str:
        return f"<StepBook {len(self._accounts)} streams, {self._sums!r}>"

    # --- streams

    def open(self, key: str, request: RequestId, *, received_at: float) -> None:
        """Begin the account of a stream at the moment its submit arrived (seconds)."""
        at_us = us_of(received_at)
        account = Account(key, request, received_at, at_us)
        self._accounts[key] = self._live[request] = account
        self._news.move(request, account.stage + WIRE_OFFSET, at_us)

    def enqueue(self, key: str, ref: str, *, at: float, copies: int = 1) -> None:
        """Note that the backend has a choice of a stream from now on, under the name `ref`; `copies`: choices that are computed as one."""
        self._catch_up()
        account = self._accounts.get(key)
        if account is None:
            return
        self._choices[ref] = choice = Choice(account, ref)
        if copies > 1:
            choice.copies = copies
        if account.choices or account.over:
            choice.number = len(account.choices) + len(account.over)
        if account.stage in (TOKENIZE, OUTPUT_PARSE):
            self._charging.shift(account, QUEUE, us_of(at))
        account.choices.append(choice)

    def enter(self, key: str, stage: Stage, *, at: float) -> None:
        """Say which stage a stream is in, for backends whose steps are not seen."""
        self._catch_up()
        account = self._accounts.get(key)
        if account is not None:
            self._charging.shift(account, ENGINE_STAGES.index(stage), us_of(at))

    def key_of(self, ref: str) -> str | None:
        """Return the stream that a choice belongs to; none for one that is unknown, or over."""
        choice = self._choices.get(ref)
        return None if choice is None else choice.account.key

    def end_choice(self, ref: str) -> None:
        """Note that the last step made the last token of a choice. An unknown one changes nothing."""
        self._catch_up()
        choice = self._choices.get(ref)
        if choice is not None:
            self._charging.end(choice)

    def close(self, key: str, *, at: float) -> None:
        """End the account of a stream: it has had its last words, or nobody wants any. A second call changes nothing."""
        self._catch_up()
        account = self._accounts.pop(key, None)
        if account is None:
            return
        if account.first_step:
            self._log.remember(account.request, self._life(account))
        if account.choices:
            for choice in account.choices:
                self._names.put(choice.ref, account.request)
            self._charging.drop(account.choices)
        if self._live.get(account.request) is account:
            del self._live[account.request]
        self._news.move(account.request, _DELIVER, us_of(at))

    def spent(self, key: str, *, until: float, decode_tokens: int) -> Spent | None:
        """Return what the time of a stream went to until a moment (seconds); none where it is not known. Changes nothing."""
        self._catch_up()
        account = self._accounts.get(key)
        return None if account is None else self._sums.spent(account, until, decode_tokens)

    def standing(self, key: str) -> tuple[Stage, int] | None:
        """Return the stage that a stream is in, and the KV blocks that it has held as far as is known; none where it is not known."""
        self._catch_up()
        account = self._accounts.get(key)
        return None if account is None else (ENGINE_STAGES[account.stage], account.held_blocks)

    # --- steps

    def feed(self, step: Step) -> None:
        """Account for a step.

        Plain ones wait until somebody asks or something else happens: a few together cost a third of what they cost one by one
        among all the other work of a step, which has emptied the processor's caches of this code meanwhile.
        """
        if self._is_plain(step):
            self._plain.append(step)
            if len(self._plain) >= MOST_PLAIN:
                self._catch_up()
        else:
            self._catch_up()
            self._feed(step)
        for listener in self.listeners:
            listener(step)

    def _catch_up(self) -> None:
        """Account for the plain steps that wait."""
        if not self._plain:
            return
        for step in self._plain:
            begin_us = max(self._sums.end_us, us_of(step.scheduled_at))
            end_us = self._sums.plain(step)
            self._log.add(step.number, end_us, step.decodes, 0)
            self._news.plain(step.decodes, max(0, end_us - begin_us))
        self._plain.clear()

    def _is_plain(self, step: Step) -> bool:
        """Return whether all is as in the step before: most steps of a busy engine."""
        return not (
            step.prefills
            or step.preempted
            or step.unscheduled
            or step.held
            or step.drafts
            or step.loading
            or step.loaded
            or self._charging.has_unfinished
            or step.mode != self._sums.decode_mode
        )

    def _feed(self, step: Step) -> None:
        span = Span(step, self._sums.end_us)
        if span.largest is not None:
            span.blocker = self._request_of(span.largest.ref)
        self._sums.share(span)
        is_new_mode = self._charging.charge(span)
        self._log.add(
            step.number, span.end_us, step.decodes + len(step.prefills), span.prompt_tokens
        )
        self._news.step(span, is_new_mode=is_new_mode)

    def _request_of(self, ref: str) -> RequestId:
        choice = self._choices.get(ref)
        if choice is not None:
            return choice.account.request
        return self._names.get(ref) or RequestId("")

    # --- what is told

    @property
    def has_news(self) -> bool:
        """Whether anything happened since `news`."""
        return bool(self._plain) or not self._news.is_empty

    def news(self, now: float) -> tuple[list[Move], StepSummary, int]:
        """Return who moved, the steps, and how many moves found no room, since the last call."""
        self._catch_up()
        return self._news.take(us_of(now), self._sums.mode)

    @property
    def mode_changes(self) -> int:
        """How often decode-only steps ran in another mode than those before."""
        self._catch_up()
        return self._sums.mode_changes

    def detail(self, engine: EngineId, request: RequestId) -> StepDetail:
        """Return the steps of a request, running or finished."""
        self._catch_up()
        account = self._live.get(request)
        if account is not None and account.first_step:
            return self._log.detail(engine, request, self._life(account))
        return self._log.detail(engine, request, self._log.recall(request))

    def _life(self, account: Account) -> Life:
        """Return the steps of a request up to now."""
        now = self._sums.number
        for choice in account.choices:
            if choice.runs is not None:
                choice.runs.by(now)
        choices = account.over + account.choices
        if len(choices) > 1:
            choices.sort(key=lambda choice: choice.number)
        runs = []
        for choice in choices:
            runs += [choice.runs.runs if choice.runs is not None else []] * choice.copies
        last_step = now if account.stage == DECODE else account.last_step
        return Life(account.first_step, last_step, account.began_us, runs)
