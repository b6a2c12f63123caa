"""Who is in a step and who is not: charges each step to those whom it concerns beyond one more token.

The rules are those of `services.engine.stepbook`. What a stream spends while it decodes as before is in `steps.sums`.
"""

from __future__ import annotations

from collections.abc import Iterable

from typing_extensions import override

from services.engine.steps.account import (
    DECODE,
    DECODE_WAIT,
    KV_LOAD,
    OUTPUT_PARSE,
    PREFILL,
    QUEUE,
    WIRE_OFFSET,
    Account,
    Choice,
)
from services.engine.steps.news import StepNews
from services.engine.steps.step import Prefill, Span, Step
from services.engine.steps.sums import Sums


class Charging:
    """The choices that a backend has, and those of them that the last step left unfinished."""

    def __init__(self, sums: Sums, news: StepNews) -> None:
        self._sums = sums
        self._news = news
        self.choices: dict[str, Choice] = {}
        """By the backend's names."""
        self._midway: list[Choice] = []
        """Whose prompt goes on in a next step."""
        self._resting: list[Choice] = []
        """Who decodes and was not in the last step."""

    @override
    def __repr__(self) -> str:
        return f"<Charging {len(self.choices)} choices, {len(self._midway)} midway, {len(self._resting)} resting>"

    @property
    def has_unfinished(self) -> bool:
        """Whether the next step cannot be as the last one."""
        return bool(self._midway or self._resting)

    def end(self, choice: Choice) -> None:
        """Let a choice end that the last step made the last token of."""
        account = choice.account
        del self.choices[choice.ref]
        self._sums.settle(account)
        if choice.runs is not None:
            choice.runs.stop(self._sums.number)
        account.choices.remove(choice)
        account.over.append(choice)
        if self._midway or self._resting:
            self._leave_lists([choice])
        self._go_on(account)

    def drop(self, choices: list[Choice]) -> None:
        """Forget choices of a stream that nobody wants any more."""
        for choice in choices:
            self.choices.pop(choice.ref, None)
        if self._midway or self._resting:
            self._leave_lists(choices)

    def charge(self, span: Span) -> bool:
        """Account for those whom the step concerns beyond one more token; return whether it ran in another mode."""
        step = span.step
        for queued in step.queued:
            if (choice := self.choices.get(queued.ref)) is not None:
                account = choice.account
                account.blocks_us = max(account.blocks_us, queued.us)
        fresh = self._fresh(step)
        if fresh is not None:
            is_new_mode = self._sums.add(span)
            for choice, chunk in fresh:
                self._admit(choice, chunk, span)
        else:
            touched = self._touched(step)
            self._before(step, touched)
            self._during(span, touched)
            is_new_mode = self._sums.add(span)
        if step.drafts or step.held:
            self._note_drafts(step)
        if fresh is None:
            self._after(step, touched)
        return is_new_mode

    def shift(self, account: Account, stage: int, at_us: int) -> None:
        """Charge the time up to a moment to the stage it was in, and go on in another. Decoding is charged before, by the sums."""
        if account.stage == stage:
            return
        if account.stage != DECODE:
            account.spend(account.stage, at_us)
        account.stage = stage
        self._news.move(account.request, stage + WIRE_OFFSET, at_us)

    def _fresh(self, step: Step) -> list[tuple[Choice, Prefill]] | None:
        """Return who begins in this step, where nothing else happens in it but whole prompts of streams with one choice: most steps."""
        if step.preempted or step.unscheduled or step.loading or step.loaded:
            return None
        if self._midway or self._resting:
            return None
        fresh = []
        for chunk in step.prefills:
            choice = self.choices.get(chunk.ref)
            if choice is None:
                continue
            if choice.stage != QUEUE or not chunk.is_last or len(choice.account.choices) != 1:
                return None
            fresh.append((choice, chunk))
        return fresh

    def _admit(self, choice: Choice, chunk: Prefill, span: Span) -> None:
        """Let a stream begin whose prompt was computed in this step: what the general way does, for most of all streams."""
        account, number, made_us = choice.account, span.step.number, span.made_us
        account.spend(QUEUE, made_us)
        account.spend(PREFILL, span.end_us)
        if not account.first_step:
            account.first_step, account.began_us = number, made_us
            account.mode_mark = self._sums.mode_changes
        account.last_step = number
        account.stage = DECODE
        choice.take(chunk)
        choice.begin(number)
        self._sums.mark(account)
        self._news.move(account.request, PREFILL + WIRE_OFFSET, made_us)
        self._news.move(account.request, DECODE + WIRE_OFFSET, span.end_us)

    def _touched(self, step: Step) -> dict[Account, None]:
        """Return the accounts for which this step is not just one more."""
        choices = self.choices
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
        choices, unscheduled = self.choices, {*step.unscheduled}
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
            if span.is_notable:
                account.blame(span.blocker, span.wait_us)

    def _begin_prefills(self, span: Span, touched: Iterable[Account]) -> set[Account]:
        """Let what was made with this step begin; return who computes a prompt for the first token of a choice."""
        own: set[Account] = set()
        step = span.step
        for account in touched:
            self.shift(account, account.stage_of_choices(), span.begin_us)
        for each in step.prefills:
            choice = self.choices.get(each.ref)
            if choice is None:
                continue
            account = choice.account
            if not choice.has_begun:
                own.add(account)
            choice.stage = DECODE_WAIT if choice.has_begun else PREFILL
            self.shift(account, account.stage_of_choices(), span.made_us)
            if not account.first_step:
                account.first_step = step.number
                account.began_us = span.made_us
                account.mode_mark = self._sums.mode_changes
        for ref in step.loading:
            if (loading := self.choices.get(ref)) is not None:
                loading.stage = KV_LOAD
                self.shift(loading.account, loading.account.stage_of_choices(), span.made_us)
        return own

    def _after(self, step: Step, touched: Iterable[Account]) -> None:
        """Note where those concerned stand at the end of the step."""
        for each in step.prefills:
            choice = self.choices.get(each.ref)
            if choice is None:
                continue
            choice.take(each)
            if each.is_last:
                choice.begin(step.number)
            else:
                self._midway.append(choice)
        for ref in step.loaded:
            if (loaded := self.choices.get(ref)) is not None and loaded.stage == KV_LOAD:
                loaded.wait(step.number)
        for account in touched:
            account.last_step = max(account.last_step, step.number if account.first_step else 0)
            self._go_on(account)

    def _note_drafts(self, step: Step) -> None:
        for each in step.drafts:
            if (choice := self.choices.get(each.ref)) is not None:
                choice.account.drafted += each.drafted
                choice.account.accepted += each.accepted
                if choice.runs is not None and choice.stage == DECODE:
                    choice.runs.made(step.number, 1 + each.accepted)
        for held in step.held:
            if (choice := self.choices.get(held.ref)) is not None:
                choice.blocks = max(choice.blocks, held.blocks)

    def _go_on(self, account: Account) -> None:
        """Go on in the stage that counts now, as of the end of the last step. What is left to do with the output is no news."""
        if not account.choices:
            account.stage = OUTPUT_PARSE
            return
        stage = account.stage_of_choices()
        self.shift(account, stage, self._sums.end_us)
        if stage == DECODE:
            self._sums.mark(account)

    def _leave_lists(self, choices: list[Choice]) -> None:
        self._midway = [each for each in self._midway if each not in choices]
        self._resting = [each for each in self._resting if each not in choices]
