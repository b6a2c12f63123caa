"""The HTTP door: paths, methods, authentication, and the start of calls. What an answer looks like is `http_outlets.py`'s."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from services.gateway.call import ApiError, Call
from services.gateway.calls import Calls
from services.gateway.http.exchange import Exchange
from services.gateway.http.shell import Asked, Farewell
from services.gateway.http_outlets import (
    JsonOutlet,
    SseOutlet,
    id_headers,
    respond_error,
    timing_header,
)
from services.gateway.ledger.book import LedgerBook
from services.gateway.lookout import Lookout, ServiceInfo
from services.gateway.openai.headers import merge_headers
from services.gateway.openai.models import model, model_body, model_list_body, model_not_found
from services.gateway.outlet import Caller, Kind
from services.gateway.reception import HTTP, Reception, label
from services.gateway.refusals import internal
from services.gateway.running import RunningCall
from shared.clock import loop_clock
from shared.metrics import CONTENT_TYPE

Handler = Callable[[Exchange], None]

KINDS: dict[str, Kind] = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}
MODEL_PREFIX = "/v1/models/"
CORS_HEADERS = (
    "authorization, content-type, traceparent, tracestate, "
    "x-headrace-timing, x-priority, x-request-id, x-request-timeout"
)
CORS_SHOWN = "hr-request-id, retry-after, server-timing, traceparent, x-request-id"
CORS_AGE_S = 600
BAD_TYPES = ("multipart/form-data",)
"""Content types that cannot be JSON. Others are taken: many a client says `application/x-www-form-urlencoded` about JSON, as
curl's `-d` does.
"""


class HttpApiSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the HTTP door adds to the server."""

    ping_s: float = 15.0
    """While the first token takes long, a comment is sent this often; 0: never."""
    cors_origins: tuple[str, ...] = ()
    """Web origins whose pages may call, such as `https://chat.example`; `*`: all. Without API keys requests of any other page
    are refused: it
    could be any page in a browser of this machine."""


class Pages(msgspec.Struct, frozen=True, kw_only=True):
    """The answers that do not concern models."""

    ready: Callable[[], str]
    """Why the gateway takes no requests now; empty: it takes them."""
    metrics: Callable[[], bytes]
    openapi: Callable[[Callable[[bytes], None]], None]
    """Calls back with the document; making it takes so long that it must not happen on the loop."""


class HttpApi:
    """Handles exchanges of the HTTP server."""

    def __init__(
        self,
        calls: Calls,
        reception: Reception,
        lookout: Lookout,
        pages: Pages,
        ledgers: LedgerBook,
        *,
        settings: HttpApiSettings,
    ) -> None:
        self._calls = calls
        self._reception = reception
        self._lookout = lookout
        self._pages = pages
        self._ledgers = ledgers
        self._settings = settings
        self._clock = loop_clock()
        self._silent: dict[SseOutlet, RunningCall] = {}
        """Streams that may be waiting for their first token."""
        self._routes: Mapping[str, Mapping[str, Handler]] = {
            **{path: {"POST": self._receive} for path in KINDS},
            "/v1/models": {"GET": self._models},
            MODEL_PREFIX: {"GET": self._model},
            "/health": {"GET": lambda exchange: exchange.respond(200, b'{"status":"ok"}')},
            "/ready": {"GET": self._ready},
            "/metrics": {"GET": self._metrics},
            "/openapi.json": {"GET": self._openapi},
        }

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        try:
            self._find(exchange)(exchange)
        except ApiError as error:
            own = label(exchange.headers.get("x-request-id"))
            shown = [("x-request-id", own)] if own else []
            respond_error(exchange, error, [*shown, *self._cors(exchange)])

    def unserved(self, asked: Asked, error: ApiError | None) -> Farewell | None:
        """Account for a request that the server did not hand over: it refused it, or (`error` is none) the client has left."""
        kind = KINDS.get(asked.path)
        if kind is None or asked.method != "POST":
            return None
        caller = self._caller(asked, kind)
        record = self._ledgers.refused(caller, error)
        return Farewell([*id_headers(caller), *timing_header(record.timing())], record.close)

    def tick(self) -> None:
        """Ping streams whose first token takes long; call about once a second."""
        ping_s, now = self._settings.ping_s, self._clock()
        for outlet, running in list(self._silent.items()):
            if running.is_over or running.first_at is not None:
                del self._silent[outlet]
            elif outlet.silent_since is None or now - outlet.silent_since < ping_s:
                outlet.silent_since = outlet.silent_since or now
            else:
                outlet.silent_since = now
                outlet.ping()

    def _find(self, exchange: Exchange) -> Handler:
        path = exchange.path
        is_model = path.startswith(MODEL_PREFIX) and len(path) > len(MODEL_PREFIX)
        methods = self._routes.get(MODEL_PREFIX if is_model else path)
        if methods is None or (path == MODEL_PREFIX and not is_model):
            raise _not_found(path)
        handler = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if handler is not None:
            return handler
        if exchange.method == "OPTIONS" and self._cors(exchange):
            return lambda asked: self._preflight(asked, methods)
        return lambda asked: self._wrong_method(asked, methods)

    def _caller(self, asked: Asked, kind: Kind) -> Caller:
        return self._reception.caller(HTTP, kind, asked.headers.get, received_at=asked.received_at)

    def _receive(self, exchange: Exchange) -> None:
        """Take a request, or say why not; whatever goes wrong has an entry in the ledger."""
        caller = self._caller(exchange, KINDS[exchange.path])
        try:
            self._start(exchange, caller)
        except ApiError as error:
            record = self._ledgers.refused(caller, error)
            told = [*id_headers(caller), *self._cors(exchange), *timing_header(record.timing())]
            respond_error(exchange, error, told)
            exchange.when_sent(record.close)
        except Exception:
            exchange.when_sent(self._ledgers.refused(caller, internal()).close)
            raise

    def _start(self, exchange: Exchange, caller: Caller) -> None:
        headers = exchange.headers
        self._reception.admit(caller, headers.get("authorization"))
        self._check_source(exchange)
        call = self._reception.parse(caller, exchange.body)
        exchange.body = b""  # the call may wait for long, and has the prompt already
        call = merge_headers(call, headers, self._reception.limits)
        outlet = self._outlet(exchange, call, caller)
        running = self._calls.start(call, caller, outlet)
        if running.is_over:
            return
        exchange.on_disconnect = lambda: self._calls.leave(running)
        if isinstance(outlet, SseOutlet) and self._settings.ping_s > 0:
            self._silent[outlet] = running

    def _outlet(self, exchange: Exchange, call: Call, caller: Caller) -> SseOutlet | JsonOutlet:
        cors = self._cors(exchange)
        if call.stream:
            return SseOutlet(exchange, call, caller=caller, headers=cors)
        return JsonOutlet(exchange, call, self._reception.limits, caller=caller, headers=cors)

    def _check_source(self, exchange: Exchange) -> None:
        """Refuse what cannot be JSON, and pages of the web where no key proves that they are meant to call."""
        kind = exchange.headers.get("content-type")
        if kind is not None and kind.lower().startswith(BAD_TYPES):
            raise ApiError(
                415, "Send JSON, not a form.", kind="invalid_request_error", code="not_json"
            )
        if self._reception.needs_key or exchange.headers.get("origin") is None:
            return
        if self._cors(exchange):
            return
        raise ApiError(
            403,
            "Pages of this origin may not use this gateway; allow it by `cors_origins`, or use API keys.",
            kind="invalid_request_error",
            code="origin_not_allowed",
        )

    def _models(self, exchange: Exchange) -> None:
        body = model_list_body(
            model(info.name, created=info.first_seen_unix_s, max_model_len=info.max_model_len)
            for info in self._shown(exchange)
        )
        exchange.respond(200, body, headers=self._cors(exchange))

    def _model(self, exchange: Exchange) -> None:
        name = exchange.path.removeprefix(MODEL_PREFIX)
        for info in self._shown(exchange):
            if info.name == name:
                described = model(
                    name, created=info.first_seen_unix_s, max_model_len=info.max_model_len
                )
                exchange.respond(200, model_body(described), headers=self._cors(exchange))
                return
        raise model_not_found(name)

    def _shown(self, exchange: Exchange) -> list[ServiceInfo]:
        """Return the services that the caller may use."""
        present = {info.name: info for info in self._lookout.present()}
        key = exchange.headers.get("authorization")
        return [present[name] for name in self._reception.visible(present, key)]

    def _ready(self, exchange: Exchange) -> None:
        reason = self._pages.ready()
        status = "ready" if not reason else "not ready"
        body = msgspec.json.encode({"status": status, "reason": reason})
        exchange.respond(503 if reason else 200, body)

    def _metrics(self, exchange: Exchange) -> None:
        exchange.respond(200, self._pages.metrics(), content_type=CONTENT_TYPE)

    def _openapi(self, exchange: Exchange) -> None:
        cors = self._cors(exchange)
        self._pages.openapi(lambda page: exchange.respond(200, page, headers=cors))

    def _cors(self, exchange: Exchange) -> list[tuple[str, str]]:
        """Return the headers that let the page which asks read the answer; empty where it may not, or where it is no page."""
        allowed = self._settings.cors_origins
        origin = exchange.headers.get("origin") if allowed else None
        if origin is None or (origin not in allowed and "*" not in allowed):
            return []
        return [
            ("access-control-allow-origin", origin),
            ("access-control-expose-headers", CORS_SHOWN),
            ("vary", "origin"),
        ]

    def _preflight(self, exchange: Exchange, methods: Mapping[str, Handler]) -> None:
        pairs = [
            *self._cors(exchange),
            ("access-control-allow-methods", ", ".join(methods)),
            ("access-control-allow-headers", CORS_HEADERS),
            ("access-control-max-age", str(CORS_AGE_S)),
        ]
        exchange.respond(204, b"", headers=pairs)

    def _wrong_method(self, exchange: Exchange, methods: Mapping[str, Handler]) -> None:
        error = ApiError(
            405,
            f"Use {' or '.join(methods)} for {exchange.path}, not {exchange.method}.",
            kind="invalid_request_error",
            code="method_not_allowed",
        )
        allowed = [*methods, "HEAD"] if "GET" in methods else [*methods]
        pairs = [("allow", ", ".join(allowed)), *self._cors(exchange)]
        respond_error(exchange, error, pairs)


def _not_found(path: str) -> ApiError:
    return ApiError(
        404,
        f"There is no {path[:128]} here; see /openapi.json.",
        kind="invalid_request_error",
        code="not_found",
    )
