"""The account of one stream: where its time went so far, and in which stage the time since then goes.

A pointer (`at_us`) says up to when it is accounted; what is added always moves the pointer by the same amount, so the stages sum to
the time since the stream arrived, exactly. The rules by which steps are told apart are in `services.engine.stepbook`.
"""

from __future__ import annotations

from typing_extensions import override

from services.engine.steps.step import Prefill
from services.engine.steps.token_runs import TokenRuns
from shared.ids import RequestId
from shared.messages import ENGINE_STAGES, Stage

TOKENIZE, QUEUE, KV_LOAD, PREFILL, DECODE, DECODE_WAIT, _, OUTPUT_PARSE = range(len(ENGINE_STAGES))
"""Places in `ENGINE_STAGES`. Nothing goes to `kv_sync`: no backend makes a stream wait for saves or other devices outside its steps."""

PRECEDENCE = (DECODE, PREFILL, DECODE_WAIT, KV_LOAD, QUEUE)
"""Of several choices of a stream the first of these that one of them is in counts."""
_RANK = {stage: rank for rank, stage in enumerate(PRECEDENCE)}

_FIRST = ENGINE_STAGES[0]
WIRE_OFFSET = tuple(Stage).index(_FIRST)
"""From a place in `ENGINE_STAGES` to one in `STAGES`."""


class Choice:
    """One choice of a stream, as its backend sees it. As in `Account`, what it begins with stands in the class."""

    stage = QUEUE
    number = 0
    """Place among the choices of its stream."""
    copies = 1
    """Choices of the request that are computed as one here."""
    has_begun = False
    """Whether it has had a token."""
    cached = -1
    """Prompt tokens that were there already; -1: not known yet."""
    blocks = 0
    runs: TokenRuns | None = None
    """Which step made which token, from the first token on."""

    def __init__(self, account: Account, ref: str) -> None:
        self.account = account
        self.ref = ref

    @override
    def __repr__(self) -> str:
        return f"<Choice {self.ref} in {ENGINE_STAGES[self.stage]}>"

    def wait(self, step: int) -> None:
        """Be not computed from now on, so that this step makes no token of it."""
        if self.stage == DECODE and self.runs is not None:
            self.runs.pause(step)
        self.stage = DECODE_WAIT if self.has_begun else QUEUE

    def go_on(self, step: int) -> None:
        """Decode again after a pause, from this step on."""
        if self.runs is not None:
            self.runs.resume(step)
        self.stage = DECODE

    def begin(self, step: int) -> None:
        """Have made a token with the last chunk of the prompt, and decode from now on."""
        if self.runs is None:
            self.runs = TokenRuns(step)
        else:
            self.runs.made(step, 1)
        self.has_begun = True
        self.stage = DECODE

    def take(self, chunk: Prefill) -> None:
        """Count a chunk of the prompt."""
        account = self.account
        account.prefilled += chunk.tokens
        account.again += chunk.again
        self.blocks = max(self.blocks, chunk.blocks)
        if self.cached < 0:
            self.cached = chunk.cached
            if account.cached < 0 or chunk.cached < account.cached:
                account.cached = chunk.cached
                account.host, account.disk = chunk.host, chunk.disk


class Account:
    """One stream. What it begins with stands in the class: most of it stays so for most streams, and one is made for each."""

    stage = TOKENIZE
    """Where the time since `at_us` goes. In `DECODE` it is told by the engine's sums since the marks."""
    wait_mark = blame_mark = batch_mark = steps_mark = mode_mark = 0
    """Where the engine's sums stood when it began to decode, and when its first step was made."""
    batch_sum = batch_steps = 0
    """Choices in the steps of its decoding, and those steps."""
    prefilled = again = preemptions = drafted = accepted = blocks_us = 0
    first_step = last_step = 0
    began_us = 0
    """When its first chunk began."""
    cached = -1
    """Prompt tokens that were there already, of the choice that had the fewest; -1: not known yet."""
    host = disk = 0
    """Of these, tokens whose blocks came from host memory, and from disk."""

    def __init__(self, key: str, request: RequestId, received_at: float, at_us: int) -> None:
        self.key = key
        self.request = request
        self.received_at = received_at
        self.at_us = at_us
        """Up to when it is accounted."""
        self.us = [0] * len(ENGINE_STAGES)
        self.choices: list[Choice] = []
        self.over: list[Choice] = []
        self.blocked_by: dict[RequestId, int] = {}

    @override
    def __repr__(self) -> str:
        return f"<Account {self.key} in {ENGINE_STAGES[self.stage]} {self.us}>"

    def spend(self, stage: int, until_us: int) -> None:
        """Charge the time up to a moment to a stage; one that has passed charges nothing."""
        if until_us > self.at_us:
            self.us[stage] += until_us - self.at_us
            self.at_us = until_us

    def decode(self, until_us: int, wait_us: int, *, rest: int = DECODE_WAIT) -> None:
        """Charge the time up to a moment to `DECODE`, but `wait_us` of it to `rest`."""
        passed_us = until_us - self.at_us
        if passed_us > 0:
            wait_us = min(wait_us, passed_us)
            self.us[DECODE] += passed_us - wait_us
            self.us[rest] += wait_us
            self.at_us = until_us

    def blame(self, who: RequestId, us: int) -> None:
        """Note who kept it waiting."""
        self.blocked_by[who] = self.blocked_by.get(who, 0) + us

    def stage_of_choices(self) -> int:
        """Return the stage that counts by `PRECEDENCE`; with no choice left, the output is all that remains."""
        choices = self.choices
        if len(choices) == 1:
            return choices[0].stage
        if not choices:
            return OUTPUT_PARSE if self.over else TOKENIZE
        return min((choice.stage for choice in choices), key=_RANK.__getitem__)

    @property
    def held_blocks(self) -> int:
        """KV blocks that its choices have held."""
        held = 0
        for choice in self.choices:
            held += choice.blocks
        for choice in self.over:
            held += choice.blocks
        return held
