"""Announces the NATS door by the NATS services protocol: `$SRV.PING`, `$SRV.INFO`, `$SRV.STATS`, for all, for the name, for this
instance.

nats-py's own `nats.micro` is not used: it counts an endpoint's time and errors by its handler's return, and ours return at once
and answer later;
it also sits on a client, while this works on any wire, the memory bus included. Protocol: NATS ADR-32.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from shared.clock import unix_time_s
from shared.errors import BusError
from shared.wire import Listening, Wire

NAME = "headrace"
PREFIX = "$SRV"
NS = 1_000_000_000


class Endpoint:
    """One subject and what happened there; a call counts when it has ended."""

    def __init__(self, name: str, subject: str, queue: str) -> None:
        self.name = name
        self.subject = subject
        self.queue = queue
        self.requests = 0
        self.errors = 0
        self.busy_s = 0.0
        self.last_error = ""

    def count(self, seconds: float, error: str = "") -> None:
        """Count a request that was answered."""
        self.requests += 1
        self.busy_s += seconds
        if error:
            self.errors += 1
            self.last_error = error

    def info(self) -> dict[str, object]:
        """Return what INFO says."""
        return {
            "name": self.name,
            "subject": self.subject,
            "queue_group": self.queue,
            "metadata": {},
        }

    def stats(self) -> dict[str, object]:
        """Return what STATS says."""
        busy_ns = int(self.busy_s * NS)
        return {
            "name": self.name,
            "subject": self.subject,
            "queue_group": self.queue,
            "num_requests": self.requests,
            "num_errors": self.errors,
            "last_error": self.last_error,
            "processing_time": busy_ns,
            "average_processing_time": busy_ns // max(1, self.requests),
        }


class Announcement:
    """Answers discovery requests."""

    def __init__(
        self,
        wire: Wire,
        endpoints: list[Endpoint],
        *,
        instance: str,
        version: str,
        metadata: dict[str, str],
    ) -> None:
        self._wire = wire
        self._endpoints = endpoints
        self._identity = {
            "name": NAME,
            "id": instance,
            # The protocol wants three numbers; a bare checkout has none.
            "version": version if version[:1].isdigit() else "0.0.0",
            "metadata": metadata,
        }
        self._started = (
            datetime.fromtimestamp(unix_time_s(), UTC).isoformat().replace("+00:00", "Z")
        )
        self._listening: list[Listening] = []

    async def start(self) -> None:
        """Listen; discovery is not shared: every instance answers."""
        for verb in ("PING", "INFO", "STATS"):
            own = f"{PREFIX}.{verb}.{NAME}"
            for subject in (f"{PREFIX}.{verb}", own, f"{own}.{self._identity['id']}"):
                self._listening.append(await self._wire.listen(subject, self._answer))

    async def stop(self) -> None:
        """Answer no more."""
        for listening in self._listening:
            await listening.close()

    def _answer(
        self, subject: str, payload: bytes, reply: str, headers: Mapping[str, str] | None
    ) -> None:
        del payload, headers
        if not reply:
            return
        verb = subject.split(".")[1]
        try:
            self._wire.send(reply, msgspec.json.encode(self._page(verb)))
        except BusError:
            return

    def _page(self, verb: str) -> dict[str, object]:
        page: dict[str, object] = {
            "type": f"io.nats.micro.v1.{verb.lower()}_response",
            **self._identity,
        }
        if verb == "INFO":
            page["description"] = "OpenAI-compatible chat and completions"
            page["endpoints"] = [endpoint.info() for endpoint in self._endpoints]
        elif verb == "STATS":
            page["started"] = self._started
            page["endpoints"] = [endpoint.stats() for endpoint in self._endpoints]
        return page
