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

from collections.abc import Callable, Iterable

from typing_extensions import override

from services.engine.steps.account import (
    DECODE,
    DECODE_WAIT,
    KV_LOAD,
    OUTPUT_PARSE,
    PREFILL,
    QUEUE,
    TOKENIZE,
    WIRE_OFFSET,
    Account,
    Choice,
)
from services.engine.steps.log import Life, StepLog, life_of
from services.engine.steps.news import StepNews
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

KEPT_NAMES = 8192
"""Choices whose request is still known by name when they are gone: a step under way may hold others up for their sake."""
_DELIVER = STAGES.index(Stage.DELIVER)


class StepBook:
    """All accounts of one engine. Its backend writes, its shell reads."""

    def __init__(self, log: StepLog | None = None) -> None:
        self._accounts: dict[str, Account] = {}
        self._choices: dict[str, Choice] = {}
        self._names: dict[str, RequestId] = {}
        self._live: dict[RequestId, Account] = {}
        self._sums = Sums()
        self._midway: list[Choice] = []
        self._resting: list[Choice] = []
        self._news = StepNews()
        self._log = log or StepLog()
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
        account = self._accounts.get(key)
        if account is None:
            return
        self._choices[ref] = choice = Choice(account, ref, copies)
        self._names[ref] = account.request
        if len(self._names) > KEPT_NAMES:
            del self._names[next(iter(self._names))]
        if account.stage in (TOKENIZE, OUTPUT_PARSE):
            self._shift(account, QUEUE, us_of(at))
        account.choices.append(choice)

    def enter(self, key: str, stage: Stage, *, at: float) -> None:
        """Say which stage a stream is in, for backends whose steps are not seen."""
        account = self._accounts.get(key)
        if account is not None:
            self._shift(account, ENGINE_STAGES.index(stage), us_of(at))

    def end_choice(self, ref: str) -> None:
        """Note that the last step made the last token of a choice. An unknown one changes nothing."""
        choice = self._choices.pop(ref, None)
        if choice is None:
            return
        account = choice.account
        self._sums.settle(account)
        choice.runs.stop(self._sums.number)
        account.choices.remove(choice)
        account.over.append(choice)
        self._leave_lists([choice])
        self._go_on(account)

    def close(self, key: str, *, at: float) -> None:
        """End the account of a stream: it has had its last words, or nobody wants any. A second call changes nothing."""
        account = self._accounts.pop(key, None)
        if account is None:
            return
        if account.first_step:
            self._sums.settle(account)
            self._log.remember(account.request, self._life(account))
        for choice in account.choices:
            self._choices.pop(choice.ref, None)
        self._leave_lists(account.choices)
        if self._live.get(account.request) is account:
            del self._live[account.request]
        self._news.move(account.request, _DELIVER, us_of(at))

    def spent(self, key: str, *, until: float, decode_tokens: int) -> Spent | None:
        """Return what the time of a stream went to until a moment (seconds); none where it is not known. Changes nothing."""
        account = self._accounts.get(key)
        return None if account is None else self._sums.spent(account, until, decode_tokens)

    def standing(self, key: str) -> tuple[Stage, int] | None:
        """Return the stage that a stream is in, and the KV blocks that it has held as far as is known; none where it is not known."""
        account = self._accounts.get(key)
        return None if account is None else (ENGINE_STAGES[account.stage], account.held_blocks)

    # --- steps

    def feed(self, step: Step) -> None:
        """Account for a step."""
        span = Span(step, self._sums.end_us)
        if span.largest is not None:
            span.blocker = self._names.get(span.largest.ref, RequestId(""))
        self._sums.share(span)
        touched = self._touched(step)
        if touched:
            self._before(step, touched)
            self._during(span, touched)
        is_new_mode = self._sums.add(span)
        if step.drafts or step.held:
            self._note_drafts(step)
        if touched:
            self._after(step, touched)
        self._log.add(
            step.number, span.end_us, step.decodes + len(step.prefills), span.prompt_tokens
        )
        self._news.step(span, is_new_mode=is_new_mode)
        for listener in self.listeners:
            listener(step)

    # --- what is told

    @property
    def has_news(self) -> bool:
        """Whether anything happened since `news`."""
        return not self._news.is_empty

    def news(self, now: float) -> tuple[list[Move], StepSummary, int]:
        """Return who moved, the steps, and how many moves found no room, since the last call."""
        return self._news.take(us_of(now))

    @property
    def mode_changes(self) -> int:
        """How often decode-only steps ran in another mode than those before."""
        return self._sums.mode_changes

    def detail(self, engine: EngineId, request: RequestId) -> StepDetail:
        """Return the steps of a request, running or finished."""
        account = self._live.get(request)
        if account is not None and account.first_step:
            return self._log.detail(engine, request, self._life(account))
        return self._log.detail(engine, request, self._log.recall(request))

    def _life(self, account: Account) -> Life:
        choices = sorted((*account.over, *account.choices), key=lambda choice: choice.number)
        return life_of(
            account.first_step,
            max(account.last_step, self._sums.number if account.stage == DECODE else 0),
            account.began_us,
            [
                choice.runs.by(self._sums.number if choice.ref in self._choices else 0)
                for choice in choices
                for _ in range(choice.copies)
            ],
        )

    # --- a step

    def _touched(self, step: Step) -> dict[Account, None]:
        """Return the accounts for which this step is not just one more."""
        choices = self._choices
        touched: dict[Account, None] = {}
        for each in step.prefills:
            if each.ref in choices:
                touched[choices[each.ref].account] = None
        for refs in (step.preempted, step.unscheduled, step.loading, step.loaded):
            for ref in refs:
                if ref in choices:
                    touched[choices[ref].account] = None
        for choice in self._midway:
            touched[choice.account] = None
        for choice in self._resting:
            touched[choice.account] = None
        return touched

    def _before(self, step: Step, touched: Iterable[Account]) -> None:
        """Bring those concerned up to the end of the step before, and stop those who are not in this one."""
        for account in touched:
            self._sums.settle(account)
        if self._midway:
            going_on = {each.ref for each in step.prefills}
            for choice in self._midway:
                if choice.ref not in going_on:
                    choice.wait(step.number)
            self._midway = []
        if self._resting or step.preempted or step.unscheduled:
            self._pause(step)

    def _pause(self, step: Step) -> None:
        """Note who of those that decode is not in the step, and who is again."""
        choices, unscheduled = self._choices, {*step.unscheduled}
        resting = [each for each in self._resting if each.ref in unscheduled]
        for choice in self._resting:
            if choice.ref not in unscheduled:
                choice.go_on(step.number)
        for ref in step.preempted:
            if ref in choices:
                choices[ref].account.preemptions += 1
                choices[ref].wait(step.number)
        for ref in step.unscheduled:
            if ref in choices and choices[ref].stage == DECODE:
                choices[ref].wait(step.number)
                resting.append(choices[ref])
        self._resting = resting

    def _during(self, span: Span, touched: Iterable[Account]) -> None:
        """Charge this step to those concerned."""
        own = self._begin_prefills(span, touched)
        for account in touched:
            if account.stage != DECODE:
                account.spend(account.stage, span.end_us)
                continue
            account.batch_sum += span.step.decodes
            account.batch_steps += 1
            if account in own:
                account.decode(span.end_us, span.wait_us, rest=PREFILL)
                continue
            account.decode(span.end_us, span.wait_us)
            if span.wait_us:
                account.blame(span.blocker, span.wait_us)

    def _begin_prefills(self, span: Span, touched: Iterable[Account]) -> set[Account]:
        """Let what was made with this step begin; return who computes a prompt for the first token of a choice."""
        own: set[Account] = set()
        step = span.step
        for account in touched:
            self._shift(account, account.stage_of_choices(), span.begin_us)
        for each in step.prefills:
            choice = self._choices.get(each.ref)
            if choice is None:
                continue
            account = choice.account
            if not choice.has_begun:
                own.add(account)
            choice.stage = DECODE_WAIT if choice.has_begun else PREFILL
            self._shift(account, account.stage_of_choices(), span.made_us)
            if not account.first_step:
                account.first_step = step.number
                account.began_us = span.made_us
                account.mode_mark = self._sums.mode_changes
        for ref in step.loading:
            if (loading := self._choices.get(ref)) is not None:
                loading.stage = KV_LOAD
                self._shift(loading.account, loading.account.stage_of_choices(), span.made_us)
        return own

    def _after(self, step: Step, touched: Iterable[Account]) -> None:
        """Note where those concerned stand at the end of the step."""
        for each in step.prefills:
            choice = self._choices.get(each.ref)
            if choice is None:
                continue
            choice.take(each)
            if each.is_last:
                choice.begin(step.number)
            else:
                self._midway.append(choice)
        for ref in step.loaded:
            if (loaded := self._choices.get(ref)) is not None and loaded.stage == KV_LOAD:
                loaded.wait(step.number)
        for account in touched:
            account.last_step = max(account.last_step, step.number if account.first_step else 0)
            self._go_on(account)

    def _note_drafts(self, step: Step) -> None:
        for each in step.drafts:
            if (choice := self._choices.get(each.ref)) is not None:
                choice.account.drafted += each.drafted
                choice.account.accepted += each.accepted
                choice.runs.made(step.number, 1 + each.accepted)
        for held in step.held:
            if (choice := self._choices.get(held.ref)) is not None:
                choice.blocks = max(choice.blocks, held.blocks)

    # --- an account

    def _go_on(self, account: Account) -> None:
        """Go on in the stage that counts now, as of the end of the last step. What is left to do with the output is no news."""
        stage = account.stage_of_choices()
        if stage == OUTPUT_PARSE:
            account.stage = stage
            return
        self._shift(account, stage, self._sums.end_us)
        if stage == DECODE:
            self._sums.mark(account)

    def _shift(self, account: Account, stage: int, at_us: int) -> None:
        """Charge the time up to a moment to the stage it was in, and go on in another. Decoding is charged before, by the sums."""
        if account.stage == stage:
            return
        if account.stage != DECODE:
            account.spend(account.stage, at_us)
        account.stage = stage
        self._news.move(account.request, stage + WIRE_OFFSET, at_us)

    def _leave_lists(self, choices: list[Choice]) -> None:
        """Forget choices that the last step left unfinished."""
        if self._midway or self._resting:
            self._midway = [each for each in self._midway if each not in choices]
            self._resting = [each for each in self._resting if each not in choices]
