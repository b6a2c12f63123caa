"""Any OpenAI-compatible server (vLLM, SGLang, TGI, llama.cpp) behind the port.

From outside not everything shows: token ids are unknown, the prompt's length is an estimate until the usage comes,
jobs that wait in the server count as running, and a step is a chunk that arrived.
Of the stages two are seen: until the first piece it is `prefill`, which includes the way there and any queue, and then `decode`.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import aiohttp
from typing_extensions import override

from services.engine.adapters.openai_body import estimate_tokens, request_of
from services.engine.adapters.openai_chunks import BrokenStreamError, ChunkReader
from services.engine.adapters.openai_models import ServerModel, find_model
from services.engine.adapters.openai_refusal import refusal_of
from services.engine.adapters.sse import EventTooBigError, SseReader
from services.engine.ports import (
    EngineFailedError,
    Job,
    Limits,
    Load,
    Piece,
    RefusedError,
    Sink,
    told,
)
from services.engine.settings import OpenAiSettings
from services.engine.stepbook import StepBook
from shared.clock import stamp_clock
from shared.messages import RefuseReason, Spent, Stage, StreamError, TokensPrompt

_MAX_ERROR_BYTES = 64 << 10
_MAX_MODELS_BYTES = 1 << 20
_START_RETRY_S = 0.5
_HTTP_OK = 200
_TROUBLE = (aiohttp.ClientError, OSError, TimeoutError)


class _Open:
    """One request that is open at the server."""

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self.prompt_tokens = estimate_tokens(job.prompt)
        self.reader = ChunkReader(choices=job.sampling.n, prompt_tokens=self.prompt_tokens)
        self.accepted: asyncio.Future[None] = loop.create_future()
        self.task: asyncio.Task[None] | None = None
        self.has_begun = False
        self.tokens = 0

    def accept(self) -> None:
        """Let `submit` return, if it still waits."""
        if not self.accepted.done():
            self.accepted.set_result(None)

    def refuse(self, refusal: RefusedError) -> None:
        """Let `submit` raise, if it still waits."""
        if not self.accepted.done():
            self.accepted.set_exception(refusal)


class OpenAiEngine:
    """Implements `InferenceEngine`. `start` and `stop` belong to one task: it owns the tasks of the requests."""

    def __init__(self, settings: OpenAiSettings, book: StepBook | None = None) -> None:
        self._settings = settings
        self.book = StepBook() if book is None else book
        self._url = settings.url.rstrip("/")
        self._open: dict[str, _Open] = {}
        self._stack = AsyncExitStack()
        self._group: asyncio.TaskGroup | None = None
        self._chunks = 0
        self._chunk_at = 0.0

    @override
    def __repr__(self) -> str:
        return f"<OpenAiEngine {self._url} {len(self._open)} open>"

    async def start(self, sink: Sink) -> Limits:
        """Wait for the server and learn its model."""
        if not self._url.startswith(("http://", "https://")):
            raise EngineFailedError(f"openai.url is {self._url!r}: set it to http://HOST:PORT/v1")
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._clock = stamp_clock()
        self._death: asyncio.Future[str] = self._loop.create_future()
        self._session = await self._stack.enter_async_context(_session(self._settings))
        self._model = await self._find_model()
        self._group = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._probe = self._group.create_task(self._watch(), name="openai probe")
        return Limits(
            backend="openai",
            model=self._model.name,
            version=self._model.owner,
            max_model_len=self._model.max_model_len,
            max_streams=self._settings.max_streams,
        )

    async def submit(self, job: Job) -> int:
        """Send the request; return the estimated prompt length once the server has begun to answer."""
        if job.key in self._open:
            raise RefusedError(RefuseReason.INVALID, f"the key {job.key} is in use")
        if self._group is None or self._death.done():
            raise EngineFailedError("the engine has stopped, or its server is gone")
        self._check_room(job.sampling.n)
        self._check_length(job)
        if not self._open:
            self._chunk_at = self._loop.time()
        request = self._open[job.key] = _Open(job, self._loop)
        received_at = job.received_at or self._clock()
        self.book.open(job.key, job.request, received_at=received_at)
        self.book.enter(job.key, Stage.PREFILL, at=received_at)
        request.task = self._group.create_task(self._serve(request), name="openai request")
        try:
            await request.accepted
        except asyncio.CancelledError:
            self.cancel(job.key)
            raise
        return request.prompt_tokens

    def cancel(self, key: str) -> None:
        """Close the connection of a request."""
        request = self._open.pop(key, None)
        if request is not None and request.task is not None:
            self.book.close(key, at=self._clock())
            request.task.cancel()
            # A task that is cancelled before its first step never runs at all.
            message = "cancelled while it was submitted"
            request.refuse(RefusedError(RefuseReason.INVALID, message))

    def spent(self, key: str) -> Spent | None:
        """Return what can be told from outside."""
        request = self._open.get(key)
        return None if request is None else self._spent(request)

    def load(self) -> Load:
        """Return what can be seen from outside."""
        return Load(
            running=self._count_choices(),
            step=self._chunks,
            step_age_s=self._loop.time() - self._chunk_at if self._open else 0.0,
        )

    async def failed(self) -> str:
        """Return once the server has missed its probes."""
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        """Close all connections."""
        for key in list(self._open):
            self.cancel(key)
        if self._group is not None:
            self._group = None
            self._probe.cancel()
        await self._stack.aclose()

    def _count_choices(self) -> int:
        return sum(request.reader.open_choices for request in self._open.values())

    def _check_room(self, choices: int) -> None:
        limit = self._settings.max_streams
        if choices > limit:
            message = f"n is {choices}, this engine runs {limit} choices"
            raise RefusedError(RefuseReason.INVALID, message, param="n")
        if self._count_choices() + choices > limit:
            message = f"all {limit} places of openai.max_streams are taken"
            raise RefusedError(RefuseReason.OVERLOADED, message)

    def _check_length(self, job: Job) -> None:
        """Refuse what cannot fit whatever the tokenizer says: some servers shorten the answer without a word."""
        context, wanted = self._model.max_model_len, job.sampling.max_tokens or 1
        least = len(job.prompt.token_ids) if isinstance(job.prompt, TokensPrompt) else 1
        if least + wanted > context:
            raise RefusedError(
                RefuseReason.TOO_LONG,
                f"This model's maximum context length is {context} tokens. However, you requested"
                f" {wanted} tokens in the completion and at least {least} in the prompt."
                " Reduce one of them.",
                param="max_tokens",
            )

    async def _serve(self, request: _Open) -> None:
        """Carry one request from its beginning to its last piece; every trouble ends in a refusal or an error piece."""
        try:
            await self._exchange(request)
        except RefusedError as refusal:
            request.refuse(refusal)
        except BrokenStreamError as error:
            self._end(request, request.reader.fail(error.error))
        except EventTooBigError as error:
            self._end(request, request.reader.fail(StreamError(message=f"the server sent {error}")))
        except _TROUBLE as error:
            self._give_up(request, error)
        finally:
            if self._open.get(request.job.key) is request:
                del self._open[request.job.key]
                self.book.close(request.job.key, at=self._clock())

    async def _exchange(self, request: _Open) -> None:
        path, body = request_of(request.job, model=self._model.name)
        async with asyncio.timeout(self._settings.first_token_timeout_s):
            response = await self._session.post(
                self._url + path,
                data=body,
                headers={"Content-Type": "application/json"},
                allow_redirects=False,
            )
        try:
            if response.status != _HTTP_OK or response.content_type != "text/event-stream":
                raise await self._refusal(response)
            request.accept()
            await self._read(request, response)
        finally:
            response.close()

    async def _refusal(self, response: aiohttp.ClientResponse) -> RefusedError:
        async with asyncio.timeout(self._settings.connect_timeout_s):
            body = await response.content.read(_MAX_ERROR_BYTES)
        return refusal_of(response.status, response.headers, body)

    async def _read(self, request: _Open, response: aiohttp.ClientResponse) -> None:
        reader, events = request.reader, SseReader()
        silence_s = self._settings.first_token_timeout_s
        while not reader.is_complete:
            async with asyncio.timeout(silence_s):
                chunk = await response.content.readany()
            self._chunks += 1
            self._chunk_at = self._loop.time()
            if not chunk:
                self._end(request, reader.end())
            for event in events.feed(chunk):
                pieces = reader.read(event)
                if pieces:
                    silence_s = self._settings.idle_timeout_s
                self._end(request, pieces)

    def _end(self, request: _Open, pieces: list[Piece]) -> None:
        key, is_complete = request.job.key, request.reader.is_complete
        if is_complete:
            self._open.pop(key, None)
        for piece in pieces:
            self._sink(key, self._told(request, piece))
        if is_complete:
            self.book.close(key, at=self._clock())

    def _told(self, request: _Open, piece: Piece) -> Piece:
        """Return a piece with what it must tell of the time."""
        key, extra = request.job.key, piece.extra
        request.tokens += bool(piece.text)
        if extra is not None and extra.usage is not None:
            request.tokens = extra.usage.completion_tokens
        is_last = extra is not None and (extra.usage is not None or extra.error is not None)
        if not request.has_begun:
            request.has_begun = True
            self.book.enter(key, Stage.DECODE, at=self._clock())
        elif not is_last:
            return piece
        return told(piece, self._spent(request))

    def _spent(self, request: _Open) -> Spent | None:
        key = request.job.key
        return self.book.spent(key, until=self._clock(), decode_tokens=request.tokens)

    def _give_up(self, request: _Open, error: Exception) -> None:
        """Report a connection that broke or fell silent."""
        if isinstance(error, TimeoutError):
            message = f"{self._url} was silent for too long"
        else:
            message = f"{self._url}: {str(error) or type(error).__name__}"
        if request.accepted.done():
            self._end(request, request.reader.fail(StreamError(message=message)))
        else:
            request.refuse(RefusedError(RefuseReason.NOT_READY, message))

    async def _find_model(self) -> ServerModel:
        """Ask until the server answers. Raises `EngineFailedError`."""
        settings = self._settings
        gives_up_at = self._loop.time() + settings.start_timeout_s
        while True:
            try:
                return find_model(await self._get_models(), settings)
            except _TROUBLE as error:
                if self._loop.time() >= gives_up_at:
                    raise EngineFailedError(
                        f"no OpenAI-compatible server at {self._url} within"
                        f" {settings.start_timeout_s:g} s ({error}): check openai.url"
                    ) from error
            await asyncio.sleep(_START_RETRY_S)

    async def _get_models(self) -> bytes:
        """Return the body of the model list. Raises `EngineFailedError` where asking again is no use."""
        async with (
            asyncio.timeout(self._settings.connect_timeout_s),
            self._session.get(f"{self._url}/models", allow_redirects=False) as response,
        ):
            if response.status in (401, 403):
                raise EngineFailedError(
                    f"{self._url} refuses our API key (HTTP {response.status}): check openai.api_key"
                )
            response.raise_for_status()
            return await response.content.read(_MAX_MODELS_BYTES)

    async def _watch(self) -> None:
        """Probe the server; declare it dead after too many lost probes without a chunk of any answer."""
        lost, reason = 0, ""
        while lost < self._settings.probes_lost:
            chunks = self._chunks
            await asyncio.sleep(self._settings.probe_s)
            try:
                await self._get_models()
                lost = 0
            except (*_TROUBLE, EngineFailedError) as error:
                reason = str(error) or type(error).__name__
                lost = lost + 1 if chunks == self._chunks else 0
        self._death.set_result(f"{self._url} lost {lost} probes: {reason}")


def _session(settings: OpenAiSettings) -> aiohttp.ClientSession:
    key = settings.api_key.reveal()
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s),
        # Our own limit is `max_streams`; a pool's limit would make requests wait unseen.
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
    )
