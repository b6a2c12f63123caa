"""The NATS door: `hr.api.<service>.chat`, `.completions`, `.models` and `.cancel`, OpenAI's JSON in and out, on a connection of its own.

The subject names the service; a `model` in the body may be left out, else it must be the same.

Cancel: the header `Hr-Request-Id` names the request by something that only its caller has: the id that came with the first message of the
answer, the request's own reply subject, or, with API keys, the id that the caller gave it in `Hr-Request-Id` (both then need
keys of one tenant).
All gateways hear a cancel, only the one that has the request answers it.

Interest: about once a second a chunk of a streamed answer carries a reply subject of ours; where nobody listens to the caller's
inbox any more,
the server says so there, and the call ends. An answer in one message cannot be probed without disturbing the caller's
`request()`, whose inbox
mostly is a wildcard that outlives the interest anyway; such a call ends by its deadline or by a cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec import UNSET, UnsetType
from typing_extensions import override

from services.gateway.call import ApiError, invalid
from services.gateway.calls import Calls
from services.gateway.ledger.book import LedgerBook
from services.gateway.lookout import Lookout
from services.gateway.nats_announce import Endpoint
from services.gateway.nats_outlets import NatsAnswer, NatsStream, ReplyTo, id_fields, timing_fields
from services.gateway.openai.headers import NATS_HEADERS, merge_headers
from services.gateway.openai.models import model, model_list_body
from services.gateway.outlet import Caller, Kind
from services.gateway.reception import NATS, Reception
from services.gateway.refusals import internal
from services.gateway.running import RunningCall
from shared import logs
from shared.clock import loop_clock, stamp_clock
from shared.keys import ANONYMOUS
from shared.messages import (
    API_CANCEL_SUBJECT,
    API_KEY_HEADER,
    API_QUEUE,
    API_REQUEST_ID_HEADER,
    API_SUBJECT,
    API_VERBS,
)
from shared.quiet import Quiet
from shared.subjects import fill
from shared.wire import NO_RESPONDERS_STATUS, STATUS_HEADER, Listening, Wire

SERVICE_PART = 2
"""Place of the service in `hr.api.<service>.<verb>`."""
FORBIDDEN_REPLIES = ("hr.", "$")
"""Subjects that carry our own messages or the server's: nobody may have us write there."""
KINDS: dict[str, Kind] = {"chat": "chat", "completions": "completion"}
CANCELLED = ApiError(499, "The request was cancelled.", kind="cancelled", code="cancelled")

Fields = Mapping[str, str]
Key = tuple[str, str]


class _Named(msgspec.Struct):
    """The one field that is looked at before the body is parsed."""

    model: object | UnsetType = UNSET


_peek = msgspec.json.Decoder(_Named).decode


def with_model(body: bytes, service: str) -> bytes:
    """Return the body with the service of the subject as its `model`, where it names none. Raises `ApiError` where it names another."""
    try:
        named = _peek(body).model
    except (msgspec.MsgspecError, RecursionError):
        return body  # the parser proper says what is wrong
    if named is UNSET:
        rest = body.lstrip()[1:]
        comma = b"" if rest.lstrip().startswith(b"}") else b","
        return b'{"model":' + msgspec.json.encode(service) + comma + rest
    if named != service:
        raise invalid(
            f"The subject is that of `{service}`; leave `model` out, or use the subject of that model.",
            param="model",
        )
    return body


class _Open:
    """A call of this door."""

    __slots__ = ("began", "endpoint", "keys", "outlet", "running", "to")

    def __init__(self, endpoint: Endpoint, began: float) -> None:
        self.endpoint = endpoint
        self.began = began
        self.keys: tuple[Key, ...] = ()
        self.to: ReplyTo | None = None
        self.outlet: NatsStream | NatsAnswer | None = None
        self.running: RunningCall | None = None


class NatsApi:
    """Requests from the bus."""

    def __init__(
        self,
        wire: Wire,
        calls: Calls,
        reception: Reception,
        lookout: Lookout,
        ledgers: LedgerBook,
    ) -> None:
        self._wire = wire
        self._calls = calls
        self._reception = reception
        self._lookout = lookout
        self._ledgers = ledgers
        self._stamp = stamp_clock()
        self._log = logs.get("nats_api")
        self._quiet = Quiet(loop_clock())
        self._taking: list[Listening] = []
        self._side: list[Listening] = []
        self._open: dict[int, _Open] = {}
        self._by_key: dict[Key, int] = {}
        self._last_no = 0
        self._probes = wire.new_inbox() + "."
        self.endpoints = {
            verb: Endpoint(verb, fill(API_SUBJECT.replace("{verb}", verb), {}), API_QUEUE)
            for verb in API_VERBS
        }

    @override
    def __repr__(self) -> str:
        return f"<NatsApi {len(self._open)} open>"

    def __len__(self) -> int:
        return len(self._open)

    async def start(self) -> None:
        """Take requests, each by one gateway; cancels go to all."""
        self._side = [
            await self._wire.listen(self._probes + "*", self._on_probe),
            await self._wire.listen(fill(API_CANCEL_SUBJECT, {}), self._on_cancel),
        ]
        for verb, endpoint in self.endpoints.items():
            receive = self._receiver(verb, endpoint)
            self._taking.append(await self._wire.listen(endpoint.subject, receive, queue=API_QUEUE))

    async def stop_taking(self) -> None:
        """Take no new requests; what has arrived is still begun."""
        for listening in self._taking:
            await listening.drain()

    async def stop(self) -> None:
        """End all interest."""
        for listening in (*self._taking, *self._side):
            await listening.close()

    def tick(self) -> None:
        """Let the next chunk of each streamed answer ask whether anybody listens; call about once a second."""
        for no, entry in self._open.items():
            if entry.to is not None and entry.outlet is not None and entry.outlet.is_streamed:
                entry.to.probe = f"{self._probes}{no}"

    def _receiver(
        self, verb: str, endpoint: Endpoint
    ) -> Callable[[str, bytes, str, Fields | None], None]:
        """Return what takes the messages of a verb; whatever goes wrong ends here and is answered."""

        def receive(subject: str, payload: bytes, reply: str, headers: Fields | None) -> None:
            if not reply or reply.startswith(FORBIDDEN_REPLIES):
                if times := self._quiet.due("reply subject"):
                    self._log.warning("nats_request_unanswerable", subject=subject, times=times)
                return
            self._last_no += 1
            no = self._last_no
            entry = self._open[no] = _Open(endpoint, self._stamp())
            entry.to = to = ReplyTo(self._wire, reply, on_over=lambda why: self._over(no, why))
            try:
                if verb == "models":
                    self._models(to, headers or {})
                else:
                    service = subject.split(".")[SERVICE_PART]
                    self._receive(no, service, payload, headers or {}, KINDS[verb])
            except ApiError as error:
                to.fail(error, {})
            except Exception as error:  # noqa: BLE001 - the caller is told, the door stays open
                self._log.error("nats_request_broke", subject=subject, exc_info=error)
                to.fail(internal(), {})

        return receive

    def _receive(self, no: int, service: str, payload: bytes, headers: Fields, kind: Kind) -> None:
        """Take a request, or say why not; whatever goes wrong has an entry in the ledger."""
        entry = self._open[no]
        to = entry.to
        assert to is not None
        caller = self._reception.caller(NATS, kind, headers.get, received_at=entry.began)
        try:
            self._start(no, caller, service, payload, headers)
        except ApiError as error:
            record = self._ledgers.refused(caller, error, model=service)
            to.fail(error, {**id_fields(caller), **timing_fields(record.timing())})
            record.close()
        except Exception:
            self._ledgers.refused(caller, internal(), model=service).close()
            raise

    def _start(
        self, no: int, caller: Caller, service: str, payload: bytes, headers: Fields
    ) -> None:
        entry = self._open[no]
        to, limits = entry.to, self._reception.limits
        assert to is not None
        self._reception.admit(caller, headers.get(API_KEY_HEADER))
        call = self._reception.parse(caller, with_model(payload, service))
        call = merge_headers(call, headers, limits, names=NATS_HEADERS)
        outlet = (
            NatsStream(to, call, caller) if call.stream else NatsAnswer(to, call, limits, caller)
        )
        entry.outlet = outlet
        running = self._calls.start(call, caller, outlet)
        if not running.is_over:
            entry.running = running
            entry.keys = _keys(running, to.subject)
            self._by_key.update(dict.fromkeys(entry.keys, no))

    def _models(self, to: ReplyTo, headers: Fields) -> None:
        present = {info.name: info for info in self._lookout.present()}
        body = model_list_body(
            model(
                name,
                created=present[name].first_seen_unix_s,
                max_model_len=present[name].max_model_len,
            )
            for name in self._reception.visible(present, headers.get(API_KEY_HEADER))
        )
        to.end(body, {})

    def _over(self, no: int, why: str) -> None:
        """A request has had its last message, or cannot get one."""
        entry = self._open.pop(no)
        for key in entry.keys:
            if self._by_key.get(key) == no:
                del self._by_key[key]
        entry.endpoint.count(self._stamp() - entry.began, why)
        if entry.running is None:
            return
        failure = entry.outlet.failure if isinstance(entry.outlet, NatsStream) else None
        if failure is not None:
            self._calls.fail(entry.running, failure)
        else:
            self._calls.leave(entry.running)

    def _on_probe(self, subject: str, payload: bytes, reply: str, headers: Fields | None) -> None:
        """Take what the server says to a probe; callers that answer a chunk by mistake land here too."""
        del payload, reply
        number = subject[len(self._probes) :]
        entry = self._open.get(int(number)) if number.isdecimal() else None
        is_gone = headers is not None and headers.get(STATUS_HEADER) == NO_RESPONDERS_STATUS
        if is_gone and entry is not None and entry.to is not None:
            entry.to.over("the caller is gone")

    def _on_cancel(self, subject: str, payload: bytes, reply: str, headers: Fields | None) -> None:
        del subject, payload
        fields = headers or {}
        no = self._named(fields.get(API_REQUEST_ID_HEADER, ""), fields.get(API_KEY_HEADER))
        entry = self._open.get(no) if no is not None else None
        if entry is None or entry.running is None or entry.outlet is None:
            return
        self._calls.leave(entry.running)
        entry.outlet.fail(CANCELLED, None)
        if reply and not reply.startswith(FORBIDDEN_REPLIES):
            ReplyTo(self._wire, reply, on_over=lambda _: None).end(b'{"cancelled":true}', {})

    def _named(self, name: str, authorization: str | None) -> int | None:
        """Return the number of the call that a canceller names and may cancel."""
        own = self._by_key.get(("own", name))
        if own is not None:
            return own
        try:
            tenant = self._reception.tenant(authorization)
        except ApiError:
            return None
        return self._by_key.get((f"tenant {tenant}", name))


def _keys(running: RunningCall, reply: str) -> tuple[Key, ...]:
    """Return by what a call may be named in a cancel. Labels of anonymous callers are no secret, so they name nothing."""
    caller = running.caller
    keys: tuple[Key, ...] = (("own", running.request), ("own", reply))
    if caller.label and caller.tenant != ANONYMOUS:
        return (*keys, (f"tenant {caller.tenant}", caller.label))
    return keys
