"""Real vLLM behind the engine port.

Uses `AsyncLLM` through attributes that it shows (`input_processor`, `output_processor`, `engine_core`) the way its own `add_request`
does, with one difference: outputs become pieces at once instead of passing through a queue and a task per request
(`bench/vllm_front.py`). `tests/integration/test_vllm_seams.py` names each part relied upon, so that a new version fails there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import copy
from functools import partial
from typing import Any

import vllm
from typing_extensions import override
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from services.engine.adapters.grammar_check import GrammarCheck
from services.engine.adapters.grammar_frames import Bounds, Built
from services.engine.adapters.render_pool import RenderPool
from services.engine.adapters.token_bytes import TokenBytes
from services.engine.adapters.vllm_grammar import is_tried, key_of, load_compile, setup_of
from services.engine.adapters.vllm_launch import NO_TIERS, start_async_llm
from services.engine.adapters.vllm_limits import limits_of
from services.engine.adapters.vllm_load import StepStats, block_bytes_of, load_of
from services.engine.adapters.vllm_outputs import Answer, ChoiceOutput
from services.engine.adapters.vllm_prompts import Prompts
from services.engine.adapters.vllm_resume import behind, catch_up, check_prior
from services.engine.adapters.vllm_sampling import Abilities, params_of, refusal_of, room, seed_of
from services.engine.adapters.vllm_shape import Shape, shape_of
from services.engine.adapters.vllm_steps import step_gate
from services.engine.adapters.vllm_tools import ToolParser
from services.engine.adapters.vllm_version import check_version
from services.engine.ports import EngineFailedError, Job, Limits, Load, RefusedError, Sink
from services.engine.settings import KvSettings, VllmSettings
from services.engine.stepbook import StepBook
from shared import logs
from shared.clock import stamp_clock
from shared.messages import Priority, RefuseReason, Spent

STOP_S = 5.0
"""Time that vLLM's processes get to end before they are killed."""
GRAMMAR_PATIENCE_S = 2.0
"""How long the answer to a submit may wait for a grammar to be tried out, so that nearly all bad ones are refused. Gateways wait 5 s."""
GRAMMAR_S = 60.0
"""How long an answer may wait for it, the grammars before it included."""

_RANK = {Priority.INTERACTIVE: 0, Priority.DEFAULT: 1, Priority.BATCH: 2}
"""vLLM's priorities: the lowest number goes first."""

_log = logs.get("vllm")


class VllmEngine:
    """Implements `InferenceEngine`."""

    def __init__(
        self, settings: VllmSettings, book: StepBook | None = None, kv: KvSettings = NO_TIERS
    ) -> None:
        self._settings, self._kv = settings, kv
        self.book = StepBook() if book is None else book
        self._answers: dict[str, Answer] = {}
        self._work_since = 0.0
        self._doomed: list[str] = []
        self._is_stopping = False
        self._llm: AsyncLLM | None = None
        self._prompts: Prompts | None = None
        self._pool = RenderPool()
        self._grammars = GrammarCheck(load_compile, Bounds(cpu_s=settings.grammar_cpu_s))

    @override
    def __repr__(self) -> str:
        return f"<VllmEngine {self._settings.model} answers={len(self._answers)}>"

    async def start(self, sink: Sink) -> Limits:
        """Load the model and start the processes."""
        check_version(vllm.__version__)
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._clock = stamp_clock()
        self._death: asyncio.Future[str] = self._loop.create_future()
        self._tasks = await asyncio.TaskGroup().__aenter__()
        # In this order: both are forked before anything here has a thread.
        self._grammars.fork()
        try:
            llm, _ = await asyncio.gather(
                start_async_llm(self._settings, self._kv), self._pool.spawn()
            )
        except BaseException:
            await self._grammars.stop()
            raise
        self._llm = llm
        assert llm.output_handler is not None, "vLLM starts it where a loop runs"
        llm.output_handler.add_done_callback(self._on_output_end)
        await self._read_model(llm)
        return self._abilities.limits

    async def submit(self, job: Job) -> int:
        """Render, tokenize, check, enqueue."""
        if self._death.done():
            raise EngineFailedError(self._death.result())
        if job.key in self._answers:
            raise RefusedError(RefuseReason.INVALID, f"the key {job.key} is in use")
        answer = Answer(job.key, self._sink, self._gate, on_end=self._on_end)
        self._answers[job.key] = answer
        received_at = job.received_at or self._clock()
        self.book.open(job.key, job.request, received_at=received_at)
        try:
            return await self._submit(job, answer)
        except EngineDeadError as error:
            self.cancel(job.key)
            raise EngineFailedError("the engine core died") from error
        except BaseException:
            self.cancel(job.key)
            raise

    def cancel(self, key: str) -> None:
        """Forget a job at once; vLLM learns of it before its next step."""
        answer = self._answers.pop(key, None)
        if answer is None:
            return
        answer.is_over = True
        self._gate.close(key)
        self._doom(answer)

    def spent(self, key: str) -> Spent | None:
        """Return what the time of a job went to until now; what its step under way does is not known yet."""
        answer = self._answers.get(key)
        return None if answer is None else self._gate.spent(key, answer.completion_tokens)

    def load(self) -> Load:
        """Return the load by the core's last step."""
        if self._prompts is None:
            return Load()
        return load_of(
            self._stats,
            self._abilities.limits,
            open_choices=self._open_choices(),
            work_since=self._work_since,
            now=self._loop.time(),
        )

    async def failed(self) -> str:
        """Return once vLLM's output loop has ended, which it does when the core or a worker dies."""
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        """End all processes; leaves no shared memory behind."""
        if self._is_stopping:
            return
        self._is_stopping = True
        for key in list(self._answers):
            self.cancel(key)
        await self._pool.stop()
        await self._grammars.stop()
        if self._llm is not None:
            await _shut_down(self._llm)
            await self._tasks.__aexit__(None, None, None)

    # --- start

    async def _read_model(self, llm: AsyncLLM) -> None:
        """Learn from vLLM what the model and the engine can do."""
        self._supported_tasks = await llm.get_supported_tasks()
        config, tokenizer = llm.vllm_config, llm.get_tokenizer()
        self._gate = await step_gate(llm, self.book, self._clock)
        self._stats = StepStats(self._gate)
        self._stats.attach(llm)
        self._abilities = Abilities(
            limits=limits_of(
                self._settings, config, self._kv, block_bytes=await block_bytes_of(llm)
            ),
            vocab_size=config.model_config.get_vocab_size(),
            max_logprobs=_max_logprobs(config.model_config),
            defaults=config.model_config.get_diff_sampling_param(),
        )
        parser = self._settings.tool_call_parser
        self._tool_parser = ToolParser(parser, tokenizer) if parser else None
        self._prompts = Prompts(
            self._settings, self._pool, tokenizer=tokenizer, model_config=config.model_config
        )
        self._token_bytes = TokenBytes(self._prompts.backend_tokenizer)
        await self._prompts.load()
        self._tries_grammars = is_tried(config)
        if self._tries_grammars:
            await self._grammars.connect(setup_of(config))

    # --- submit

    async def _submit(self, job: Job, answer: Answer) -> int:
        assert self._prompts is not None
        shape = shape_of(job, self._tool_parser, shows_tools=self._prompts.shows_tools)
        token_ids = await self._prompts.tokens(job.prompt)
        self._check_wanted(answer)
        max_tokens = room(job, len(token_ids), self._abilities.limits)
        params = params_of(job, max_tokens, abilities=self._abilities, shape=shape)
        check_prior(job, self._abilities.vocab_size)
        answer.expect(
            job.sampling.n,
            len(token_ids),
            token_bytes=self._token_bytes,
            top=job.sampling.logprobs,
            still_open={prior.choice for prior in job.prior} or range(job.sampling.n),
        )
        enqueueing = partial(self._enqueue, job, answer, token_ids, params, shape)
        if shape.grammar is None or not self._tries_grammars:
            await enqueueing()
            return len(token_ids)
        # vLLM builds a part of a grammar here and all of it in its core: neither can be stopped there, or survive a crash of the library.
        building = self._grammars.begin(*key_of(shape.grammar))
        await asyncio.wait((building,), timeout=GRAMMAR_PATIENCE_S)
        if building.done():
            self._grammars.judge(building.result(), param=shape.param)
            await enqueueing()
        else:
            self._tasks.create_task(self._enqueue_later(building, answer, shape, enqueueing))
        return len(token_ids)

    async def _enqueue_later(
        self,
        building: asyncio.Future[Built | None],
        answer: Answer,
        shape: Shape,
        enqueueing: Callable[[], Awaitable[None]],
    ) -> None:
        """Go on with a submit that was answered while its grammar was being built; what would have refused it ends the answer now."""
        try:
            async with asyncio.timeout(GRAMMAR_S):
                self._grammars.judge(await asyncio.shield(building), param=shape.param)
            await enqueueing()
        except RefusedError as error:
            is_at_fault = error.reason is RefuseReason.INVALID
            answer.fail(str(error), retryable=not is_at_fault, param=error.param)
        except TimeoutError:
            answer.fail("the grammar of the schema was not built in time")
        except (EngineFailedError, EngineDeadError) as error:
            answer.fail(str(error))
        except Exception as error:  # noqa: BLE001 - only this answer is lost
            _log.error("submit_broke", answer=answer, exc_info=error)
            answer.fail("the engine could not take the request", retryable=False)

    async def _enqueue(
        self, job: Job, answer: Answer, token_ids: list[int], params: SamplingParams, shape: Shape
    ) -> None:
        self._check_wanted(answer)
        request = await self._request(job, token_ids, params, shape)
        self._check_wanted(answer)
        if shape.new_listener is not None:
            answer.listen([shape.new_listener() for _ in range(job.sampling.n)])
        await self._add(job, answer, request)

    def _check_wanted(self, answer: Answer) -> None:
        """Raise where a wait of the submit saw the job cancelled, or the engine's end."""
        if self._death.done():
            raise EngineFailedError(self._death.result())
        if answer.is_over:
            raise RefusedError(RefuseReason.INVALID, "cancelled while it was submitted")

    async def _request(
        self, job: Job, token_ids: list[int], params: SamplingParams, shape: Shape
    ) -> EngineCoreRequest:
        """Return vLLM's request of the first choice. Raises `RefusedError`."""
        try:
            if shape.grammar is None:
                return self._processed(job, token_ids, params)
            # A part of the grammar is built for a check: milliseconds, but not for the loop.
            return await asyncio.to_thread(self._processed, job, token_ids, params)
        except (VLLMClientError, ValueError) as error:
            raise refusal_of(error, param=shape.param) from error

    def _processed(
        self, job: Job, token_ids: list[int], params: SamplingParams
    ) -> EngineCoreRequest:
        assert self._llm is not None
        processor = self._llm.input_processor
        request = processor.process_inputs(
            job.key,
            tokens_input(token_ids, cache_salt=job.prefix_salt or None),
            params,
            supported_tasks=self._supported_tasks,
            priority=_RANK[job.priority],
        )
        processor.assign_request_id(request)
        return request

    async def _add(self, job: Job, answer: Answer, request: EngineCoreRequest) -> None:
        """Hand the choices to vLLM, each as a request of its own."""
        assert self._llm is not None
        if not self._open_choices(but=answer):
            self._work_since = self._loop.time()
        reader = self._llm.output_processor
        priors = {prior.choice: prior for prior in job.prior}
        for choice in priors or range(job.sampling.n):
            if answer.is_over:
                return
            own = request if choice == 0 else _sibling(request, choice, job.sampling.seed)
            reader.add_request(own, None, None, 0, ChoiceOutput(answer, choice, own.request_id))
            answer.request_ids[choice] = own.request_id
            self._gate.enqueue(job.key, own.request_id)
            if prior := priors.get(choice):
                answer.say(choice, catch_up(reader, own.request_id, prior))
                own = behind(own, prior)
            await self._llm.engine_core.add_request_async(own)

    # --- end

    def _on_end(self, key: str, is_whole: bool) -> None:
        answer = self._answers.pop(key, None)
        self._gate.close(key)
        if answer is not None and not is_whole:
            self._doom(answer)

    def _doom(self, answer: Answer) -> None:
        """Have vLLM end what is left of an answer, together with all others of this turn of the loop."""
        if not self._doomed:
            self._loop.call_soon(self._abort)
        self._doomed += answer.request_ids.values()

    def _open_choices(self, *, but: Answer | None = None) -> int:
        return sum(answer.open_choices for answer in self._answers.values() if answer is not but)

    def _abort(self) -> None:
        doomed, self._doomed = self._doomed, []
        if doomed and self._llm is not None and not self._is_stopping and not self._death.done():
            self._tasks.create_task(_abort(self._llm, doomed))

    def _on_output_end(self, _task: asyncio.Task[Any]) -> None:
        if self._is_stopping or self._death.done():
            return
        assert self._llm is not None
        reason = _death_of(self._llm)
        _log.error("engine_core_died", reason=reason)
        self._death.set_result(reason)
        for answer in list(self._answers.values()):
            answer.fail(reason)


def _max_logprobs(model_config: Any) -> int:
    most: int = model_config.max_logprobs
    return model_config.get_vocab_size() if most < 0 else most


def _sibling(request: EngineCoreRequest, choice: int, seed: int | None) -> EngineCoreRequest:
    """Return the request of another choice."""
    own = copy(request)
    own.request_id = f"{request.request_id}.{choice}"
    own.sampling_params = copy(request.sampling_params)
    own.sampling_params.seed = seed_of(seed, choice)
    return own


async def _abort(llm: AsyncLLM, request_ids: list[str]) -> None:
    try:
        await llm.abort(request_ids, internal=True)
    except EngineDeadError:
        # Then nothing of them runs.
        return


def _death_of(llm: AsyncLLM) -> str:
    manager = llm.engine_core.resources.engine_manager
    ends = manager.finished_procs() if manager is not None else {}
    told = ", ".join(f"{name} ended with code {code}" for name, code in ends.items())
    return f"vLLM's engine core died ({told or 'see its log'})"


async def _shut_down(llm: AsyncLLM) -> None:
    handler = llm.output_handler
    if handler is not None:
        # First, or it takes the end of the core for its death and logs that.
        handler.cancel()
        await asyncio.wait((handler,), timeout=STOP_S)
    await asyncio.to_thread(llm.shutdown, timeout=STOP_S)
    # vLLM closes its sockets, in a turn of the loop to come, and leaves their context to the garbage collector.
    await asyncio.sleep(0)
    async with asyncio.timeout(STOP_S):
        await asyncio.to_thread(llm.engine_core.resources.ctx.term)
