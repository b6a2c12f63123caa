"""How an answer leaves over HTTP: as server-sent events, or as one JSON body."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from typing_extensions import override

from services.gateway.call import ApiError, Call
from services.gateway.http.exchange import Exchange
from services.gateway.ledger.timing import Timing
from services.gateway.openai.answer import AnswerBuilder, answer_too_large
from services.gateway.openai.limits import RequestLimits
from services.gateway.openai.render import ChunkRenderer
from services.gateway.outlet import Caller
from shared.clock import unix_time_s
from shared.ids import RequestId
from shared.messages import API_REQUEST_ID_HEADER, Delta, Usage

PING = b": ping\n\n"
TIMING_COMMENT = b": headrace-timing %b\n\n"
REQUEST_ID_FIELD = API_REQUEST_ID_HEADER.lower()
SSE_HEADERS = (
    ("cache-control", "no-cache"),
    # nginx buffers answers of proxied servers unless told not to.
    ("x-accel-buffering", "no"),
)


def id_headers(caller: Caller) -> list[tuple[str, str]]:
    """Return the ids of a request: `X-Request-Id` is the caller's own where it gave one, `Hr-Request-Id` is always ours, and so is
    the span in `traceparent`.
    """
    return [
        ("x-request-id", caller.label or caller.request),
        (REQUEST_ID_FIELD, caller.request),
        ("traceparent", caller.trace.parent),
    ]


def timing_header(timing: Timing | None) -> list[tuple[str, str]]:
    """Return what browsers and others read as the timing of an answer in one piece."""
    return [] if timing is None else [("server-timing", timing.server_timing())]


def respond_error(
    exchange: Exchange, error: ApiError, headers: Iterable[tuple[str, str]] = ()
) -> None:
    """Answer with OpenAI's error object."""
    pairs = list(headers)
    if error.retry_after_s is not None:
        pairs.append(("retry-after", str(max(1, math.ceil(error.retry_after_s)))))
    if error.status == 504:  # noqa: PLR2004
        # OpenAI's clients would ask again by themselves, and the whole answer would be generated for a caller out of time.
        pairs.append(("x-should-retry", "false"))
    if error.status == 401:  # noqa: PLR2004
        pairs.append(("www-authenticate", "Bearer"))
    exchange.respond(error.status, error.body(), headers=pairs)


class SseOutlet:
    """A streamed answer: written to the connection right from the handler of the token batch."""

    is_streamed = True

    def __init__(
        self, exchange: Exchange, call: Call, *, caller: Caller, headers: list[tuple[str, str]]
    ) -> None:
        self._exchange = exchange
        self._write = exchange.write
        self._call = call
        self._caller = caller
        self._headers = headers
        self._renderer: ChunkRenderer | None = None
        self.silent_since: float | None = None
        """When the head was written, or the last ping."""

    @override
    def __repr__(self) -> str:
        return f"<SseOutlet {self._exchange}>"

    def too_large(self, chars: int) -> ApiError | None:
        """See `Outlet`."""
        del chars
        return None

    def begin(self, request: RequestId) -> None:
        """See `Outlet`."""
        renderer = ChunkRenderer(self._call, request_id=request, created=unix_time_s())
        self._renderer = renderer
        self._render = renderer.delta
        self._exchange.start_stream(
            headers=[*SSE_HEADERS, *id_headers(self._caller), *self._headers]
        )
        self._write(renderer.opening())

    def delta(self, delta: Delta, choice: int) -> None:
        """See `Outlet`."""
        self._write(self._render(delta, choice))

    def continued(self, choice: int, *, is_exact: bool) -> None:
        """See `Outlet`."""
        assert self._renderer is not None
        self._write(self._renderer.continued(choice, is_exact=is_exact))

    def finish(self, usage: Usage, timing: Timing | None) -> ApiError | None:
        """See `Outlet`."""
        assert self._renderer is not None
        if timing is not None:
            self._write(TIMING_COMMENT % timing.json())
        self._write(self._renderer.closing(usage))
        self._exchange.end()
        return None

    def fail(self, error: ApiError, timing: Timing | None) -> None:
        """See `Outlet`. In mid-stream: an error event and the end, without `[DONE]`; OpenAI's clients raise on it."""
        if self._renderer is None:
            pairs = [*id_headers(self._caller), *self._headers]
            respond_error(self._exchange, error, [*pairs, *timing_header(timing)])
            return
        if timing is not None:
            self._write(TIMING_COMMENT % timing.json())
        self._write(self._renderer.error(error))
        self._exchange.end()

    def when_sent(self, then: Callable[[], None]) -> None:
        """See `Outlet`."""
        self._exchange.when_sent(then)

    def ping(self) -> None:
        """Send a comment, so that nobody on the way takes the connection for dead."""
        if self._renderer is not None:
            self._write(PING)


class JsonOutlet:
    """An answer in one piece."""

    is_streamed = False

    def __init__(
        self,
        exchange: Exchange,
        call: Call,
        limits: RequestLimits,
        *,
        caller: Caller,
        headers: list[tuple[str, str]],
    ) -> None:
        self._exchange = exchange
        self._call = call
        self._limits = limits
        self._caller = caller
        self._headers = headers
        self._builder: AnswerBuilder | None = None

    @override
    def __repr__(self) -> str:
        return f"<JsonOutlet {self._exchange}>"

    def too_large(self, chars: int) -> ApiError | None:
        """See `Outlet`."""
        return answer_too_large() if chars > self._limits.max_answer_chars else None

    def begin(self, request: RequestId) -> None:
        """See `Outlet`."""
        self._builder = AnswerBuilder(self._call, request_id=request, created=unix_time_s())

    def delta(self, delta: Delta, choice: int) -> None:
        """See `Outlet`."""
        assert self._builder is not None
        self._builder.add(delta, choice)

    def continued(self, choice: int, *, is_exact: bool) -> None:
        """See `Outlet`."""
        del choice
        assert self._builder is not None
        self._builder.continued(is_exact=is_exact)

    def finish(self, usage: Usage, timing: Timing | None) -> ApiError | None:
        """See `Outlet`."""
        builder = self._builder
        assert builder is not None
        if builder.failure is not None:
            self.fail(builder.failure, timing)
        else:
            self._exchange.respond(200, builder.body(usage), headers=self._all_headers(timing))
        return builder.failure

    def fail(self, error: ApiError, timing: Timing | None) -> None:
        """See `Outlet`."""
        respond_error(self._exchange, error, self._all_headers(timing))

    def when_sent(self, then: Callable[[], None]) -> None:
        """See `Outlet`."""
        self._exchange.when_sent(then)

    def _all_headers(self, timing: Timing | None) -> list[tuple[str, str]]:
        return [*id_headers(self._caller), *self._headers, *timing_header(timing)]
