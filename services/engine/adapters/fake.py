"""A fake engine behind the port: text from a seed, latency from a small model, time from the loop.

For tests, demos and benchmarks of everything around an engine. It says nothing about a model's quality or speed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice

from typing_extensions import override
from xxhash import xxh3_64_intdigest

from services.engine.adapters.fake_batch import Batch, Task
from services.engine.adapters.fake_json import NotSimpleError, called_tool, smallest
from services.engine.adapters.fake_prefix import block_hashes
from services.engine.adapters.fake_text import (
    careful_words,
    document,
    plan,
    seed_of,
    stamps,
    tool_call,
    words,
)
from services.engine.ports import EngineFailedError, Job, Limits, Load, Piece, RefusedError, Sink
from services.engine.settings import FakeSettings
from services.engine.stepbook import StepBook
from shared.clock import stamp_clock
from shared.messages import (
    ChatPrompt,
    Prior,
    Prompt,
    RefuseReason,
    Spent,
    TextPrompt,
    TokensPrompt,
)

_BYTES_PER_TOKEN = 4
_MAX_LAG_S = 0.5
"""A step that ends later than this (the process was stopped) does not make the next ones hurry."""


class FakeEngine:
    """Implements `InferenceEngine`."""

    def __init__(self, settings: FakeSettings, book: StepBook | None = None) -> None:
        self._settings = settings
        self.book = StepBook() if book is None else book
        self._batch = Batch(settings)
        self._rendering: set[str] = set()
        self._step = 0
        self._step_began_at = 0.0
        self._step_stamp = 0.0
        self._step_end: asyncio.Handle | None = None
        self._is_stalled = False

    @override
    def __repr__(self) -> str:
        return f"<FakeEngine step={self._step} {self._batch!r}>"

    async def start(self, sink: Sink) -> Limits:
        """Become ready after `start_s`."""
        settings = self._settings
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._clock = stamp_clock()
        self._death: asyncio.Future[str] = self._loop.create_future()
        await asyncio.sleep(settings.start_s)
        return Limits(
            backend="fake",
            model="fake",
            version="1",
            max_model_len=settings.max_model_len,
            max_streams=settings.max_streams,
            total_blocks=settings.total_blocks,
            block_tokens=settings.block_tokens,
            block_bytes=settings.block_bytes,
            resumes=True,
            tells_blocks=True,
        )

    async def submit(self, job: Job) -> int:
        """Check and enqueue a job; takes `render_s`."""
        if job.key in self._rendering or job.key in self._batch:
            raise RefusedError(RefuseReason.INVALID, f"the key {job.key} is in use")
        self._rendering.add(job.key)
        self.book.open(job.key, job.request, received_at=job.received_at or self._clock())
        try:
            task = await self._rendered(job)
        except BaseException:
            self.book.close(job.key, at=self._clock())
            raise
        finally:
            self._rendering.discard(job.key)
        self.book.enqueue(job.key, job.key, at=self._clock(), copies=len(task.choices))
        self._batch.add(task, job.priority, self._loop.time())
        self._go_on(self._loop.time())
        return task.prompt_tokens

    def cancel(self, key: str) -> None:
        """Forget a job at once."""
        self._rendering.discard(key)
        self._batch.remove(key)
        self.book.close(key, at=self._clock())

    def spent(self, key: str) -> Spent | None:
        """Return what the time of a job went to until now."""
        return self.book.spent(
            key, until=self._clock(), decode_tokens=self._batch.completion_tokens(key)
        )

    def load(self) -> Load:
        """Return the current load."""
        age_s = self._loop.time() - self._step_began_at if self._batch.has_work else 0.0
        return self._batch.load(step=self._step, step_age_s=age_s)

    async def failed(self) -> str:
        """Return once `die` was called."""
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        """Forget all jobs."""
        self.stall()
        self._rendering.clear()
        self._batch = Batch(self._settings)

    def die(self, reason: str) -> None:
        """Fail as a crashed backend does: silence, and `failed` returns."""
        self.stall()
        if not self._death.done():
            self._death.set_result(reason)

    def stall(self) -> None:
        """Make no further step, as a hung backend does."""
        self._is_stalled = True
        if self._step_end is not None:
            self._step_end.cancel()
            self._step_end = None

    async def _rendered(self, job: Job) -> Task:
        """Return the job as a task once it is rendered. Raises `RefusedError`, `EngineFailedError`."""
        await asyncio.sleep(self._settings.render_s)
        if job.key not in self._rendering:
            raise RefusedError(RefuseReason.INVALID, "cancelled while it was submitted")
        if self._death.done():
            raise EngineFailedError(self._death.result())
        return self._task(job)

    def _go_on(self, now: float) -> None:
        """Begin a step if there is work and none is under way."""
        if self._step_end is not None or self._is_stalled or not self._batch.has_work:
            return
        self._step += 1
        self._step_began_at = now
        self._step_stamp = self._clock()
        duration_s = self._batch.begin_step(now)
        if duration_s > 0:
            self._step_end = self._loop.call_at(now + duration_s, self._end, now + duration_s)
        else:
            self._step_end = self._loop.call_soon(self._end, now)

    def _end(self, planned_at: float) -> None:
        self._step_end = None
        self.book.feed(
            self._batch.facts(self._step, began_at=self._step_stamp, ended_at=self._clock())
        )
        try:
            self._batch.end_step(self._sink, self._tell)
        except Exception as error:  # noqa: BLE001 - as in a real engine: dead and known to be, not hung for good
            self.die(f"a step failed: {type(error).__name__}: {error}")
            return
        now = self._loop.time()
        is_late = now - planned_at > _MAX_LAG_S
        self._go_on(now if is_late or planned_at > now else planned_at)

    def _tell(self, task: Task, is_last: bool) -> Spent | None:
        """Return what goes with the first and the last piece of a job; after the last its account is closed."""
        key, now, book = task.key, self._clock(), self.book
        if not is_last:
            return book.spent(key, until=now, decode_tokens=task.completion_tokens)
        book.end_choice(key)
        spent = book.spent(key, until=now, decode_tokens=task.completion_tokens)
        book.close(key, at=now)
        return spent

    def _task(self, job: Job) -> Task:
        """Return the job with its whole future. Raises `RefusedError`."""
        sampling = job.sampling
        prompt_tokens = count_tokens(job.prompt)
        room = self._room(job, prompt_tokens)
        try:
            choices, tokens = self._choices(job, room)
        except NotSimpleError as error:
            raise RefusedError(
                RefuseReason.UNSUPPORTED,
                f"the fake engine answers simple JSON Schemas only: {error}",
                param="response_format" if sampling.json_schema else "tools",
            ) from error
        blocks = self._blocks(prompt_tokens, tokens)
        if blocks > self._settings.total_blocks:
            raise RefusedError(
                RefuseReason.TOO_LONG,
                f"prompt and answer need {blocks} blocks of {self._settings.block_tokens} tokens,"
                f" the pool has {self._settings.total_blocks}",
            )
        prior_tokens = sum(len(prior.token_ids) for prior in job.prior)
        return Task(
            job.key,
            prompt_tokens=prompt_tokens,
            prior_tokens=prior_tokens,
            blocks=blocks,
            choices=resumed(choices, job.prior) if job.prior else choices,
            hashes=self._hashes(job),
        )

    def _hashes(self, job: Job) -> list[int]:
        if not self._settings.caches_prefixes:
            return []
        return block_hashes(
            job.prompt,
            block_tokens=self._settings.block_tokens,
            salt=xxh3_64_intdigest(job.prefix_salt.encode()),
        )

    def _room(self, job: Job, prompt_tokens: int) -> int:
        """Return how many tokens a choice may have. Raises `RefusedError`."""
        context, wanted = self._settings.max_model_len, job.sampling.max_tokens
        if job.sampling.n > self._settings.max_streams:
            raise RefusedError(
                RefuseReason.INVALID,
                f"n is {job.sampling.n}, this engine runs {self._settings.max_streams} choices",
                param="n",
            )
        if prompt_tokens + (wanted or 1) > context:
            is_prompt = prompt_tokens >= context
            prompt_field = "messages" if isinstance(job.prompt, ChatPrompt) else "prompt"
            raise RefusedError(
                RefuseReason.TOO_LONG,
                f"This model's maximum context length is {context} tokens. However, you requested"
                f" {prompt_tokens + (wanted or 1)} tokens ({prompt_tokens} in the {prompt_field},"
                f" {wanted or 1} in the completion). Reduce one of them.",
                param=prompt_field if is_prompt else "max_tokens",
            )
        return context - prompt_tokens if wanted is None else wanted

    def _choices(self, job: Job, room: int) -> tuple[list[Iterator[Piece]], int]:
        """Return the choices and the most tokens that they can have together."""
        sampling = job.sampling
        own_seed = 0 if sampling.temperature == 0.0 else sampling.seed or 0
        seed = seed_of(job.prompt, self._settings.seed, own_seed)
        called = called_tool(job.prompt)
        text = _json_text(sampling.json_schema, is_object=sampling.json_object)
        choices: list[Iterator[Piece]] = []
        tokens = 0
        for index in range(sampling.n):
            if called is not None:
                choices.append(tool_call(index, *called, seed=seed, room=room))
                tokens += min(room, len(called[1]) + 1)
            elif text is not None:
                choices.append(document(index, text, sampling, room=room))
                tokens += min(room, max(len(text), sampling.min_tokens))
            else:
                choice, count = self._say(job, index, seed, room)
                choices.append(choice)
                tokens += count
        return choices, tokens

    def _say(self, job: Job, index: int, seed: int, room: int) -> tuple[Iterator[Piece], int]:
        """Return a choice of words, and its length."""
        sampling = job.sampling
        answer = plan(
            sampling,
            choice=index,
            seed=seed ^ seed_of(job.prompt, index) if index else seed,
            room=room,
            mean_tokens=self._settings.answer_tokens,
        )
        if self._settings.stamp:
            return stamps(answer), answer.count
        if sampling.stop or sampling.stop_token_ids or sampling.logprobs is not None:
            return careful_words(answer, sampling), answer.count
        return words(answer), answer.count

    def _blocks(self, prompt_tokens: int, tokens: int) -> int:
        return -(-(prompt_tokens + tokens) // self._settings.block_tokens)


def resumed(choices: list[Iterator[Piece]], priors: Iterable[Prior]) -> list[Iterator[Piece]]:
    """Return the choices to go on with, each behind what it has said: it says what it would have said elsewhere. Raises `RefusedError`."""
    going = []
    for prior in sorted(priors, key=lambda prior: prior.choice):
        choice = choices[prior.choice]
        said = [
            token for piece in islice(choice, len(prior.token_ids)) for token in piece.token_ids
        ]
        if said != prior.token_ids:
            raise RefusedError(RefuseReason.INVALID, "prior is not what this model says")
        going.append(choice)
    return going


def count_tokens(prompt: Prompt) -> int:
    """Return a prompt's length by the fake tokenizer: four bytes a token."""
    match prompt:
        case TokensPrompt():
            return len(prompt.token_ids)
        case TextPrompt():
            size = len(prompt.text.encode())
        case ChatPrompt():
            size = len(prompt.messages_json) + len(prompt.tools_json or b"")
    return max(1, -(-size // _BYTES_PER_TOKEN))


def _json_text(schema: bytes | None, *, is_object: bool) -> str | None:
    if schema is not None:
        return smallest(schema)
    return '{"answer":42}' if is_object else None
