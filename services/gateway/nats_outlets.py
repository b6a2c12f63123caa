"""How an answer leaves over NATS: chunk by chunk to the caller's reply subject, or as one message.

Streamed: one chunk (bare JSON) a message, then an empty message with `Hr-End: 1`. Failed, streamed or not: one message with the
error object,
`Hr-End: error` and the two headers of NATS services. The first message has our request id in `Hr-Request-Id`, and so has the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from typing_extensions import override

from services.gateway.call import ApiError, Call
from services.gateway.ledger.timing import Timing
from services.gateway.openai.answer import AnswerBuilder, answer_too_large
from services.gateway.openai.limits import RequestLimits
from services.gateway.openai.render import PayloadRenderer
from services.gateway.outlet import Caller
from shared.clock import unix_time_s
from shared.errors import BusError, TooBig
from shared.ids import RequestId
from shared.messages import (
    API_END_HEADER,
    API_REQUEST_ID_HEADER,
    API_TIMING_HEADER,
    Delta,
    Usage,
)
from shared.wire import Wire

ERROR_HEADER, ERROR_CODE_HEADER = "Nats-Service-Error", "Nats-Service-Error-Code"
RETRY_HEADER = "Retry-After"
END_WHOLE, END_ERROR = "1", "error"
MAX_HEADER_CHARS = 500


def error_headers(error: ApiError) -> dict[str, str]:
    """Return the headers of a message that ends a request with an error."""
    message = " ".join(str(error).split())[:MAX_HEADER_CHARS]
    headers = {
        API_END_HEADER: END_ERROR,
        ERROR_HEADER: message.encode("ascii", "replace").decode(),
        ERROR_CODE_HEADER: str(error.status),
    }
    if error.retry_after_s is not None:
        headers[RETRY_HEADER] = str(max(1, math.ceil(error.retry_after_s)))
    return headers


def id_fields(caller: Caller) -> dict[str, str]:
    """Return what tells a caller how its request is called here."""
    return {API_REQUEST_ID_HEADER: caller.request, "traceparent": caller.trace.parent}


def timing_fields(timing: Timing | None) -> dict[str, str]:
    """Return what tells a caller that asked where the time went."""
    return {} if timing is None else {API_TIMING_HEADER: timing.json().decode()}


class ReplyTo:
    """A caller's reply subject, until the last message. Nothing here raises but `TooBig`."""

    def __init__(self, wire: Wire, subject: str, *, on_over: Callable[[str], None]) -> None:
        self._wire = wire
        self.subject = subject
        self._on_over: Callable[[str], None] | None = on_over
        self.probe = ""
        """When set, the next message carries it as its own reply subject: the server answers there if nobody listens to the caller's."""

    @override
    def __repr__(self) -> str:
        return f"<ReplyTo {self.subject}{' over' if self._on_over is None else ''}>"

    @property
    def max_bytes(self) -> int:
        """The largest message that the server takes."""
        return self._wire.max_payload

    def send(self, payload: bytes, headers: dict[str, str] | None = None) -> None:
        """Send without waiting; nothing after the last message. Raises `TooBig`."""
        if self._on_over is None:
            return
        probe, self.probe = self.probe, ""
        try:
            self._wire.send(self.subject, payload, reply=probe, headers=headers)
        except TooBig:
            raise
        except BusError as error:
            self.over(str(error))

    def end(self, payload: bytes, headers: dict[str, str]) -> None:
        """Send the last message of a good answer. Raises `TooBig`, and then it was not the last."""
        self.send(payload, headers)
        self.over("")

    def fail(self, error: ApiError, headers: dict[str, str]) -> None:
        """Send the last message of a bad one."""
        self.send(error.body(), {**headers, **error_headers(error)})
        self.over(str(error))

    def over(self, why: str) -> None:
        """Send no more, and tell the door; `why` is empty after a good answer. A second call changes nothing."""
        on_over, self._on_over = self._on_over, None
        if on_over is not None:
            on_over(why)


class NatsStream:
    """A streamed answer."""

    is_streamed = True

    def __init__(self, to: ReplyTo, call: Call, caller: Caller) -> None:
        self._to = to
        self._call = call
        self._renderer: PayloadRenderer | None = None
        self._ids = id_fields(caller)
        self._first: dict[str, str] | None = None
        self.failure: ApiError | None = None
        """Why the answer was broken off from here."""

    def too_large(self, chars: int) -> ApiError | None:
        """See `Outlet`."""
        del chars
        return None

    def begin(self, request: RequestId) -> None:
        """See `Outlet`. Chat begins with the role chunk; a completion's first text carries the id."""
        renderer = PayloadRenderer(self._call, request_id=request, created=unix_time_s())
        self._renderer = renderer
        self._render = renderer.delta
        self._first = self._ids
        self._send_all(renderer.opening())

    def delta(self, delta: Delta, choice: int) -> None:
        """See `Outlet`."""
        self._send_all(self._render(delta, choice))

    def continued(self, choice: int, *, is_exact: bool) -> None:
        """See `Outlet`."""
        assert self._renderer is not None
        self._send_all(self._renderer.continued(choice, is_exact=is_exact))

    def finish(self, usage: Usage, timing: Timing | None) -> ApiError | None:
        """See `Outlet`."""
        assert self._renderer is not None
        self._send_all(self._renderer.closing(usage))
        if self.failure is None:
            fields = {**self._ids, API_END_HEADER: END_WHOLE, **timing_fields(timing)}
            self._to.end(b"", fields)
        return self.failure

    def fail(self, error: ApiError, timing: Timing | None) -> None:
        """See `Outlet`."""
        self._to.fail(error, {**self._ids, **timing_fields(timing)})

    def when_sent(self, then: Callable[[], None]) -> None:
        """See `Outlet`. What the bus was given is out of our hands."""
        then()

    def _send_all(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            try:
                self._to.send(chunk, self._first)
            except TooBig as error:
                self.failure = _too_large(error)
                self.fail(self.failure, None)
                return
            self._first = None


class NatsAnswer:
    """An answer in one message."""

    is_streamed = False

    def __init__(self, to: ReplyTo, call: Call, limits: RequestLimits, caller: Caller) -> None:
        self._to = to
        self._call = call
        self._limits = limits
        self._builder: AnswerBuilder | None = None
        self._ids = id_fields(caller)

    def too_large(self, chars: int) -> ApiError | None:
        """See `Outlet`. Text is no shorter as JSON; what log probabilities take is only estimated, so that the server has to judge."""
        if chars > self._limits.max_answer_chars:
            return answer_too_large()
        if chars > self._to.max_bytes and self._call.sampling.logprobs is None:
            return _too_large(TooBig(chars, self._to.max_bytes))
        return None

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
        failure = builder.failure
        if failure is None:
            try:
                self._to.end(builder.body(usage), {**self._ids, **timing_fields(timing)})
            except TooBig as error:
                failure = _too_large(error)
        if failure is not None:
            self.fail(failure, timing)
        return failure

    def fail(self, error: ApiError, timing: Timing | None) -> None:
        """See `Outlet`."""
        self._to.fail(error, {**self._ids, **timing_fields(timing)})

    def when_sent(self, then: Callable[[], None]) -> None:
        """See `Outlet`. What the bus was given is out of our hands."""
        then()


def _too_large(error: TooBig) -> ApiError:
    return ApiError(
        500,
        f"The answer needs a message of at least {error.payload_bytes} bytes; the NATS server takes {error.max_bytes}. "
        "Use `stream`, or HTTP.",
        kind="server_error",
        code="answer_too_large",
    )
