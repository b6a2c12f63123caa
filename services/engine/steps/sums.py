"""What all streams that decode share: running sums over the steps, written once a step, read where a stream begins or stops decoding."""

from __future__ import annotations

from operator import itemgetter

from typing_extensions import override

from services.engine.steps.account import DECODE, DECODE_WAIT, QUEUE, Account
from services.engine.steps.blame import Blame
from services.engine.steps.decode_time import DecodeTime
from services.engine.steps.step import Span, Step, us_of
from shared.ids import RequestId
from shared.messages import MAX_BLOCKERS, Blocker, Spent

UNDER_WAY_US = 1000
"""A step that began less than this ago cannot be called long."""


class Sums:
    """The sums up to the end of the last step."""

    def __init__(self) -> None:
        self.number = 0
        """Of the last step."""
        self.end_us = 0
        """When it ended."""
        self._wait_us = 0
        """What a stream that decoded in each step would have waited for prompts of others."""
        self._batch_sum = 0
        self._batch_steps = 0
        self._last_batch = 0
        self.mode = ""
        """Of the last step."""
        self.decode_mode = ""
        self.mode_changes = 0
        self._decode_time = DecodeTime()
        self._blame = Blame()

    @override
    def __repr__(self) -> str:
        return f"<Sums step {self.number}, {self._wait_us} us waited>"

    def share(self, span: Span) -> None:
        """Tell decoding from waiting in a step that is not added yet."""
        decodes = span.step.decodes
        if not decodes:
            return
        time = self._decode_time
        if not span.prompt_tokens:
            time.learn(decodes, span.us)
            return
        calm_us = time.of(decodes)
        if calm_us is None:
            decode_us = span.us * decodes // (decodes + span.prompt_tokens)
        elif span.us < calm_us:
            # The batch's share cannot be more than the whole: the mean is of longer contexts, or of another time.
            time.learn(decodes, span.us)
            return
        else:
            decode_us = int(calm_us)
        span.wait_us = span.us - decode_us

    def add(self, span: Span) -> bool:
        """Add a step; return whether it ran in another mode than those like it before."""
        step = span.step
        self.number, self.end_us = step.number, span.end_us
        if span.wait_us:
            self._wait_us += span.wait_us
            if span.is_notable:
                self._blame.charge(span.blocker, span.wait_us)
        if step.decodes:
            self._batch_sum += step.decodes
            self._batch_steps += 1
            self._last_batch = step.decodes
        return self.is_new_mode(step)

    def plain(self, step: Step) -> int:
        """Share out and add a step in which all is as in the one before; return when it ended."""
        begin_us, end_us, decodes = self.end_us, us_of(step.ended_at), step.decodes
        end_us = max(end_us, begin_us)
        self.number, self.end_us, self.mode = step.number, end_us, step.mode
        if decodes:
            self._batch_sum += decodes
            self._batch_steps += 1
            self._last_batch = decodes
            self._decode_time.learn(decodes, end_us - begin_us)
        return end_us

    def settle(self, account: Account) -> None:
        """Charge an account for what has passed up to the end of the last step. One that goes on to decode needs new marks."""
        if account.stage != DECODE or not account.choices:
            account.spend(account.stage, self.end_us)
            return
        account.decode(self.end_us, self._wait_us - account.wait_mark)
        account.batch_sum += self._batch_sum - account.batch_mark
        account.batch_steps += self._batch_steps - account.steps_mark
        account.last_step = self.number
        if account.blame_mark != self._blame.size:
            self._blame.since(account.blame_mark, account.blocked_by)

    def mark(self, account: Account) -> None:
        """Let an account decode from the end of the last step on."""
        account.wait_mark = self._wait_us
        account.batch_mark, account.steps_mark = self._batch_sum, self._batch_steps
        account.blame_mark = self._blame.mark()

    def spent(self, account: Account, until: float, decode_tokens: int) -> Spent:
        """Return what is told of an account, up to a moment at or after the last step. Changes nothing."""
        us, blocked_by = account.us.copy(), account.blocked_by
        at_us, last_step, until_us = account.at_us, account.last_step, us_of(until)
        steps, size = account.batch_steps, account.batch_sum
        if account.stage == DECODE and account.choices:
            last_step = self.number
            until_us = max(until_us, at_us)
            wait_us = 0
            if at_us < self.end_us or until_us - at_us > UNDER_WAY_US:
                blocked_by = blocked_by.copy()
                self._blame.since(account.blame_mark, blocked_by)
                steps += self._batch_steps - account.steps_mark
                size += self._batch_sum - account.batch_mark
                wait_us = self._wait_us - account.wait_mark + self._stuck_us(until_us)
                wait_us = min(wait_us, until_us - at_us)
            us[DECODE] += until_us - at_us - wait_us
            us[DECODE_WAIT] += wait_us
        elif until_us > at_us:
            us[account.stage] += until_us - at_us
        first_step = account.first_step
        return Spent(
            account.received_at,
            until if until_us >= at_us else at_us / 1e6,
            us,
            account.cached if account.cached > 0 else 0,
            account.prefilled,
            account.again,
            decode_tokens,
            account.drafted,
            account.accepted,
            account.preemptions,
            first_step,
            last_step,
            size / steps if steps else 0.0,
            account.held_blocks,
            _worst(blocked_by) if blocked_by else [],
            self.mode if first_step else "",
            self.mode_changes - account.mode_mark if first_step else 0,
            min(account.blocks_us, us[QUEUE]),
            account.host,
            account.disk,
        )

    def _stuck_us(self, until_us: int) -> int:
        """Return by how much the step under way is longer than a decode-only one."""
        if until_us - self.end_us < UNDER_WAY_US:
            return 0
        calm_us = self._decode_time.of(self._last_batch)
        return 0 if calm_us is None else max(0, until_us - self.end_us - int(calm_us))

    def is_new_mode(self, step: Step) -> bool:
        """Note a step's mode. Only decode-only steps count: those with prompts run in another as a matter of course."""
        self.mode = step.mode
        if step.prefills or not step.decodes:
            return False
        known, self.decode_mode = self.decode_mode, step.mode
        is_new = bool(known) and known != step.mode
        self.mode_changes += is_new
        return is_new


def _worst(blocked_by: dict[RequestId, int]) -> list[Blocker]:
    worst = sorted(blocked_by.items(), key=itemgetter(1), reverse=True)
    return [Blocker(who, us) for who, us in worst[:MAX_BLOCKERS]]
