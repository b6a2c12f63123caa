"""The fake engine's scheduler: who runs, who waits, what a step costs. Pure: no loop, no clock.

Jobs start as `services.engine.reserve` lets them, when their choices and all the blocks they will need are free; none is preempted. Over an
overcommitted pool (`FakeSettings.overcommit`) they start by priority, then arrival, and are preempted as by vLLM's own scheduler.
A step computes one token of each running choice and up to a chunk of waiting prompts.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence

from typing_extensions import override

from services.engine.adapters.fake_prefix import PrefixCache
from services.engine.ports import Load, Piece, Sink, told
from services.engine.reserve import Reserve
from services.engine.reserve_plan import plan_of
from services.engine.settings import FakeSettings
from services.engine.steps.step import Prefill, Queued, Step
from shared.messages import DeltaExtra, Priority, Spent, Usage

_RANKS = {priority: rank for rank, priority in enumerate(Priority)}


Tell = Callable[["Task", bool], Spent | None]
"""Called for the first and the last piece of a task (true: the last) with what the time of it went to."""


class Task:
    """A job in the batch or before it."""

    __slots__ = (
        "again_left",
        "blocks",
        "cached",
        "choices",
        "completion_tokens",
        "has_begun",
        "hashes",
        "held",
        "held_hashes",
        "key",
        "prefill_left",
        "prompt_tokens",
        "said",
    )

    def __init__(
        self,
        key: str,
        *,
        prompt_tokens: int,
        blocks: int,
        choices: list[Iterator[Piece]],
        prior_tokens: int = 0,
        hashes: Sequence[int] = (),
    ) -> None:
        self.key = key
        self.prompt_tokens = prompt_tokens
        self.said = prior_tokens
        """Tokens that its choices said elsewhere."""
        self.prefill_left = prompt_tokens + prior_tokens
        self.again_left = 0
        """Of these, how many a preemption dropped."""
        self.blocks = blocks
        """All that it may need."""
        self.held = 0
        """Blocks that it has."""
        self.hashes = hashes
        """Names of its prompt's full blocks, where prefixes are cached."""
        self.held_hashes = 0
        """How many of them it keeps in the cache."""
        self.cached = 0
        """Prompt tokens that were there when it started."""
        self.choices = choices
        self.completion_tokens = 0
        self.has_begun = False

    @property
    def tokens(self) -> int:
        """Tokens whose blocks it needs while it runs."""
        return self.prompt_tokens + self.said + self.completion_tokens

    def drop(self) -> None:
        """Lose all that was computed."""
        self.again_left += self.tokens - self.prefill_left
        self.prefill_left = self.tokens
        self.held = 0

    def find(self, cache: PrefixCache, block_tokens: int) -> None:
        """Start behind what is there of the prompt."""
        cached = cache.found_tokens(self.hashes, self.prompt_tokens)
        self.held_hashes = -(-cached // block_tokens)
        cache.hold(self.hashes[: self.held_hashes])
        self.prefill_left -= cached
        if not self.again_left:
            self.cached = cached
        self.again_left = min(self.again_left, self.prefill_left)

    def chunk(self, budget: int) -> Prefill:
        """Compute up to `budget` tokens of what is left of the prompt."""
        tokens = min(self.prefill_left, budget)
        again = min(tokens, self.again_left)
        self.prefill_left -= tokens
        self.again_left -= again
        return Prefill(
            self.key,
            tokens - again,
            again,
            is_last=not self.prefill_left,
            cached=self.cached,
            blocks=self.held,
        )

    def advance(self, sink: Sink, tell: Tell) -> bool:
        """Hand over one piece of each choice; return whether the job is complete."""
        if not self.has_begun:
            sink = self._telling(sink, tell)
        going = []
        for choice in self.choices:
            piece = next(choice)
            self.completion_tokens += len(piece.token_ids)
            if piece.finish is None:
                going.append(choice)
            elif not going and choice is self.choices[-1]:
                piece = self._last(piece, tell(self, True))
            sink(self.key, piece)
        self.choices = going
        return not going

    def _telling(self, sink: Sink, tell: Tell) -> Sink:
        """Return a sink that tells with the first piece what the time before it went to."""

        def first(key: str, piece: Piece) -> None:
            if not self.has_begun:
                self.has_begun = True
                piece = told(piece, tell(self, False))
            sink(key, piece)

        return first

    def _last(self, piece: Piece, spent: Spent | None) -> Piece:
        """Return the last piece with what only it has."""
        old = piece.extra or DeltaExtra()
        usage = Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached,
        )
        extra = DeltaExtra(
            logprobs=old.logprobs,
            tool_calls=old.tool_calls,
            stop_reason=old.stop_reason,
            usage=usage,
            spent=spent,
        )
        return Piece(piece.choice, piece.text, piece.token_ids, piece.finish, extra)


class Batch:
    """Running and waiting jobs, and the block pool."""

    def __init__(self, settings: FakeSettings) -> None:
        self._settings = settings
        self._arrivals = 0
        self._preemptions = 0
        self._waiting: list[tuple[int, int, Task]] = []
        self._running: dict[str, Task] = {}
        self._tasks: dict[str, Task] = {}
        self._free_blocks = settings.total_blocks
        self._reserve = None if settings.overcommit else _reserve_of(settings)
        self._queued: list[Queued] = []
        self._cache = (
            PrefixCache(block_tokens=settings.block_tokens) if settings.caches_prefixes else None
        )
        self._decodes = 0
        self._prefills: list[Prefill] = []
        self._preempted: list[str] = []
        self._midway: set[str] = set()
        """Whose prompt is not computed to its end after the step under way."""

    @override
    def __repr__(self) -> str:
        return f"<Batch {len(self._running)} running, {len(self._tasks)} in all>"

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._tasks)

    def __contains__(self, key: str) -> bool:
        return key in self._tasks

    def add(self, task: Task, priority: Priority, now: float) -> None:
        """Let a job wait for its turn."""
        self._arrivals += 1
        self._tasks[task.key] = task
        rank = _RANKS[priority]
        if self._reserve is None:
            insort(self._waiting, (rank, self._arrivals, task))
        else:
            tokens = task.blocks * self._settings.block_tokens
            self._reserve.join(task.key, need=task.blocks, tokens=tokens, rank=rank, now=now)

    def remove(self, key: str) -> None:
        """Forget a job at once; an unknown one changes nothing."""
        task = self._tasks.pop(key, None)
        if task is None:
            return
        if self._reserve is not None:
            self._reserve.drop(key)
        if self._running.pop(key, None) is not None:
            self._give_back(task)
        elif self._reserve is None:
            self._waiting = [entry for entry in self._waiting if entry[2] is not task]

    def completion_tokens(self, key: str) -> int:
        """Return how many tokens a job has said; none for an unknown one."""
        task = self._tasks.get(key)
        return 0 if task is None else task.completion_tokens

    def begin_step(self, now: float) -> float:
        """Start who fits and choose the prompt chunks; return how long the step takes."""
        settings = self._settings
        self._preempted = []
        if self._reserve is not None:
            self._start_promised(self._reserve, now)
        else:
            self._grow()
            if not self._preempted:
                self._start_waiting()
        budget = settings.chunk_tokens
        self._prefills = []
        self._midway = set()
        choices = prefilling = 0
        for task in self._running.values():
            choices += len(task.choices)
            if not task.prefill_left:
                continue
            prefilling += len(task.choices)
            if budget:
                chunk = task.chunk(budget)
                budget -= chunk.tokens + chunk.again
                self._prefills.append(chunk)
                if chunk.is_last and self._cache is not None:
                    self._cache.fill(
                        task.key, task.hashes, task.prompt_tokens, held=task.held_hashes
                    )
                    task.held_hashes = len(task.hashes)
            if task.prefill_left:
                self._midway.add(task.key)
        self._decodes = choices - prefilling
        chunk_tokens = settings.chunk_tokens - budget
        return (
            settings.step_s
            + settings.stream_step_s * choices
            + chunk_tokens / settings.prefill_tokens_per_s
        )

    def facts(self, number: int, *, began_at: float, ended_at: float) -> Step:
        """Return what the step under way was, at its end."""
        return Step(
            number,
            began_at,
            ended_at,
            decodes=self._decodes,
            prefills=self._prefills,
            preempted=self._preempted,
            mode="FAKE/eager",
            free_blocks=self._free_blocks,
            total_blocks=self._settings.total_blocks,
            promised_blocks=self._promised,
            reserved_blocks=self._kept,
            blocked=self._blocked,
            queued=self._queued,
            blocks=None if self._cache is None else self._cache.news(),
        )

    def end_step(self, sink: Sink, tell: Tell = lambda _task, _is_last: None) -> None:
        """Hand over what the step computed."""
        midway = self._midway
        for task in list(self._running.values()):
            if task.key not in midway and task.advance(sink, tell):
                self.remove(task.key)

    def load(self, *, step: int, step_age_s: float) -> Load:
        """Return how busy the batch is."""
        running = self._count_choices()
        total = sum(len(task.choices) for task in self._tasks.values())
        return Load(
            running=running,
            waiting=total - running,
            free_blocks=self._free_blocks,
            free_runs=min(1, self._free_blocks),
            largest_free_run=self._free_blocks,
            promised_blocks=self._promised,
            reserved_blocks=self._kept,
            blocked=self._blocked,
            step=step,
            step_age_s=step_age_s,
        )

    @property
    def _promised(self) -> int | None:
        """Blocks promised and not yet taken: none, since jobs take all of them when they start."""
        return None if self._reserve is None else 0

    @property
    def _kept(self) -> int | None:
        return None if self._reserve is None else self._reserve.kept(self._free_blocks)

    @property
    def _blocked(self) -> int:
        return 0 if self._reserve is None else self._reserve.blocked

    def _start_promised(self, reserve: Reserve, now: float) -> None:
        self._queued = []
        room = self._settings.max_streams - self._count_choices()
        while (key := reserve.next(now, self._free_blocks)) is not None:
            task = self._tasks[key]
            if len(task.choices) > room:
                return
            room -= len(task.choices)
            waited_us = int(reserve.start(key, now) * 1e6)
            if waited_us:
                self._queued.append(Queued(key, waited_us))
            self._start(task, task.blocks)

    def _start_waiting(self) -> None:
        room = self._settings.max_streams - self._count_choices()
        while self._waiting:
            task = self._waiting[0][2]
            blocks = self._blocks_now(task)
            if len(task.choices) > room or blocks > self._free_blocks:
                return
            del self._waiting[0]
            room -= len(task.choices)
            self._start(task, blocks)

    def _start(self, task: Task, blocks: int) -> None:
        if self._cache is not None:
            task.find(self._cache, self._settings.block_tokens)
        self._take(task, blocks)
        self._running[task.key] = task

    def _grow(self) -> None:
        """Give each running job the blocks for its next tokens; preempt the youngest until there are enough."""
        for task in list(self._running.values()):
            while task.key in self._running:
                missing = self._blocks_now(task) - task.held
                if missing <= self._free_blocks:
                    self._take(task, missing)
                    break
                self._preempt(next(reversed(self._running.values())))

    def _preempt(self, task: Task) -> None:
        del self._running[task.key]
        self._give_back(task)
        task.drop()
        self._preempted.append(task.key)
        self._preemptions += 1
        # Before all others, and before those preempted earlier, as vLLM does.
        insort(self._waiting, (-1, -self._preemptions, task))

    def _blocks_now(self, task: Task) -> int:
        """Return the blocks that a job needs for what it has and one more token of each choice."""
        return -(-(task.tokens + len(task.choices)) // self._settings.block_tokens)

    def _take(self, task: Task, blocks: int) -> None:
        task.held += blocks
        self._free_blocks -= blocks
        if self._cache is not None:
            self._cache.squeeze(self._free_blocks)

    def _give_back(self, task: Task) -> None:
        self._free_blocks += task.held
        if self._cache is not None:
            self._cache.release(task.hashes[: task.held_hashes])
            task.held_hashes = 0

    def _count_choices(self) -> int:
        return sum(len(task.choices) for task in self._running.values())


def _reserve_of(settings: FakeSettings) -> Reserve:
    plan = plan_of(
        settings.reserve,
        total=settings.total_blocks,
        context_blocks=-(-settings.max_model_len // settings.block_tokens),
        context_tokens=settings.max_model_len,
    )
    return Reserve(plan)
