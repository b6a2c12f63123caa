"""Prompts kept in memory for a person who looks for a fault: only of services for which it was switched on, for a limited time. Pure.

What is kept is in no log, no trace and no file; it is gone when the time is over, when it is switched off, and with the process.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from typing_extensions import override

from shared.ids import RequestId, ServiceName
from shared.messages import CapturedRequest, Prompt

MAX_S = 3600.0
MAX_REQUESTS = 256
MAX_BYTES = 16 << 20
"""Of all services together; the oldest go first."""
MAX_REQUEST_BYTES = 512 << 10
"""It has to fit into one message of the bus."""
MAX_SERVICES = 32


class _Capture(msgspec.Struct):
    """What is switched on for one service."""

    until: float
    passed_over: int = 0


class _Kept(msgspec.Struct, frozen=True):
    """One request."""

    request: CapturedRequest
    label: str
    size: int


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """How the capture of a service stands."""

    left_s: float
    requests: int
    size: int
    passed_over: int


class CaptureRing:
    """The prompts that are kept. Where nothing is switched on, a request costs one look at an empty table."""

    def __init__(self) -> None:
        self._captures: dict[ServiceName, _Capture] = {}
        self._kept: dict[RequestId, _Kept] = {}
        self._size = 0

    @override
    def __repr__(self) -> str:
        return f"<CaptureRing {len(self._captures)} services, {len(self._kept)} requests, {self._size} bytes>"

    @property
    def services(self) -> int:
        """How many services are captured."""
        return len(self._captures)

    def switch(self, service: ServiceName, seconds: float, *, now: float) -> None:
        """Capture a service from now on for so long; 0: stop and forget. A second call sets the time anew."""
        self.tick(now=now)
        if seconds <= 0:
            self._forget(service)
        elif service in self._captures or len(self._captures) < MAX_SERVICES:
            known = self._captures.setdefault(service, _Capture(until=now))
            known.until = now + min(seconds, MAX_S)

    def take(
        self, service: str, request: RequestId, label: str, prompts: Iterable[Prompt], *, now: float
    ) -> None:
        """Keep a request where its service is captured."""
        if not self._captures:
            return
        name = ServiceName(service)
        capture = self._captures.get(name)
        if capture is None or capture.until <= now:
            return
        kept = CapturedRequest(request=request, service=name, prompts=tuple(prompts))
        size = len(msgspec.msgpack.encode(kept))
        if size > MAX_REQUEST_BYTES:
            capture.passed_over += 1
            return
        if request in self._kept:
            self._drop(request)
        self._kept[request] = _Kept(kept, label, size)
        self._size += size
        while len(self._kept) > MAX_REQUESTS or self._size > MAX_BYTES:
            self._drop(next(iter(self._kept)))

    def find(self, request: str, *, now: float) -> CapturedRequest | None:
        """Return a request by its id, or the newest with that name of its caller's."""
        self.tick(now=now)
        by_id = self._kept.get(RequestId(request))
        if by_id is not None:
            return by_id.request
        named = (each for each in reversed(self._kept.values()) if each.label == request)
        found = next(named, None)
        return None if found is None else found.request

    def held(self, service: ServiceName, *, now: float) -> Held:
        """Return how the capture of a service stands."""
        self.tick(now=now)
        capture = self._captures.get(service)
        sizes = [each.size for each in self._kept.values() if each.request.service == service]
        return Held(
            left_s=0.0 if capture is None else capture.until - now,
            requests=len(sizes),
            size=sum(sizes),
            passed_over=0 if capture is None else capture.passed_over,
        )

    def tick(self, *, now: float) -> None:
        """Forget what is over."""
        for service in [name for name, each in self._captures.items() if each.until <= now]:
            self._forget(service)

    def _forget(self, service: ServiceName) -> None:
        self._captures.pop(service, None)
        for request in [key for key, each in self._kept.items() if each.request.service == service]:
            self._drop(request)

    def _drop(self, request: RequestId) -> None:
        self._size -= self._kept.pop(request).size
