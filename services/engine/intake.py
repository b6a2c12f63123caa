"""Takes submits: refuses what cannot be taken now, asks the backend, answers once, and the same again if asked twice.

Cancels may overtake their submit, since they travel on another subject: they are remembered for a while.
"""

from __future__ import annotations

import asyncio

from typing_extensions import override

from services.engine.lifecycle import Phase
from services.engine.metrics import Counts
from services.engine.ports import EngineFailedError, InferenceEngine, Job, Limits, RefusedError
from services.engine.recall import Recall
from services.engine.streams import Stream, Streams, key_of
from shared.clock import stamp_clock
from shared.ids import EngineId
from shared.messages import Accepted, Refused, RefuseReason, Submit

MAX_ANSWERS = 8192
MAX_EARLY_CANCELS = 4096
REMEMBER_S = 60.0
"""Longer than a message can be under way: gateways wait far less for an answer."""

Answer = Accepted | Refused


class _Pending:
    """A submit that the backend has not answered."""

    def __init__(self, answer: asyncio.Future[Answer]) -> None:
        self.answer = answer
        self.limit = asyncio.timeout(None)
        self.verdict: RefusedError | None = None


class Intake:
    """All submits under way, and the answers of late."""

    def __init__(
        self, engine: EngineId, backend: InferenceEngine, streams: Streams, counts: Counts
    ) -> None:
        self._engine = engine
        self._backend = backend
        self._streams = streams
        self._counts = counts
        self._clock = stamp_clock()
        self._pending: dict[str, _Pending] = {}
        self._answers: Recall[Answer] = Recall(max_entries=MAX_ANSWERS, max_age_s=REMEMBER_S)
        self._cancelled: Recall[bool] = Recall(max_entries=MAX_EARLY_CANCELS, max_age_s=REMEMBER_S)

    @override
    def __repr__(self) -> str:
        return f"<Intake {len(self._pending)} pending, {self._answers!r} answers>"

    @property
    def pending(self) -> int:
        """Submits that the backend has not answered."""
        return len(self._pending)

    def remember_cancel(self, key: str, *, now: float) -> None:
        """Note a cancel of an unknown stream: its submit may still come."""
        if key not in self._pending and self._answers.get(key, now=now) is None:
            self._cancelled.put(key, True, now=now)

    def forget_old(self, now: float) -> None:
        """Drop what is too old to matter."""
        self._answers.forget_old(now)
        self._cancelled.forget_old(now)

    def interrupt(self, key: str, refusal: RefusedError) -> None:
        """End the wait for the backend with a refusal; one that is answered is not touched."""
        pending = self._pending.get(key)
        if pending is not None and pending.verdict is None:
            pending.verdict = refusal
            pending.limit.reschedule(asyncio.get_running_loop().time())

    async def answer(
        self, submit: Submit, limits: Limits | None, refusal: RefusedError | None
    ) -> Answer:
        """Answer a submit; `refusal` says why none can be taken now, `limits` are known once one can."""
        now, received_at = asyncio.get_running_loop().time(), self._clock()
        key = key_of(submit.gateway, submit.stream)
        known = self._answers.get(key, now=now)
        if known is not None:
            return known
        if key in self._pending:
            return await asyncio.shield(self._pending[key].answer)
        if self._cancelled.get(key, now=now):
            refusal = RefusedError(RefuseReason.INVALID, "cancelled before it arrived")
        if refusal is not None or limits is None:
            assert refusal is not None
            answer: Answer = self._refused(submit, refusal)
        else:
            answer = await self._ask(submit, key, limits, received_at)
        self._answers.put(key, answer, now=asyncio.get_running_loop().time())
        return answer

    async def _ask(self, submit: Submit, key: str, limits: Limits, received_at: float) -> Answer:
        """Ask the backend; whatever comes of it, duplicates of the submit get the same."""
        loop = asyncio.get_running_loop()
        pending = self._pending[key] = _Pending(loop.create_future())
        stream = self._streams.open(submit, now=loop.time(), context_tokens=limits.max_model_len)
        try:
            answer = await self._exchange(submit, stream, pending, limits, received_at)
            pending.answer.set_result(answer)
            return answer
        finally:
            del self._pending[key]
            pending.answer.cancel()
            if stream.phase is Phase.SUBMITTING:  # an error nobody foresaw, or our own end
                self._streams.refuse(stream)
                self._backend.cancel(key)

    async def _exchange(
        self,
        submit: Submit,
        stream: Stream,
        pending: _Pending,
        limits: Limits,
        received_at: float,
    ) -> Answer:
        try:
            async with pending.limit:
                prompt_tokens = await self._backend.submit(_job(submit, stream.key, received_at))
        except RefusedError as refusal:
            return self._turn_down(submit, stream, pending.verdict or refusal)
        except EngineFailedError as error:
            failure = RefusedError(RefuseReason.NOT_READY, f"the engine failed: {error}")
            return self._turn_down(submit, stream, pending.verdict or failure)
        except TimeoutError:
            if pending.verdict is None:
                raise
        if pending.verdict is not None:
            # Again, since the first cancel came while the backend was still taking the job.
            self._backend.cancel(stream.key)
            return self._turn_down(submit, stream, pending.verdict)
        self._streams.accept(
            stream, prompt_tokens=prompt_tokens, context_tokens=limits.max_model_len
        )
        self._counts.accepted += 1
        return Accepted(
            engine=self._engine,
            stream=submit.stream,
            prompt_tokens=prompt_tokens,
            held_us=round((self._clock() - received_at) * 1e6),
        )

    def _turn_down(self, submit: Submit, stream: Stream, refusal: RefusedError) -> Refused:
        if stream.phase is Phase.SUBMITTING:
            self._streams.refuse(stream)
        return self._refused(submit, refusal)

    def _refused(self, submit: Submit, refusal: RefusedError) -> Refused:
        self._counts.refused[refusal.reason] += 1
        return Refused(
            engine=self._engine,
            stream=submit.stream,
            reason=refusal.reason,
            message=str(refusal),
            param=refusal.param,
            retry_after_s=refusal.retry_after_s,
        )


def _job(submit: Submit, key: str, received_at: float) -> Job:
    return Job(
        key=key,
        request=submit.request,
        prompt=submit.prompt,
        sampling=submit.sampling,
        priority=submit.priority,
        trace=submit.trace,
        received_at=received_at,
        prior=submit.prior,
        prefix_salt=submit.prefix_salt,
    )
