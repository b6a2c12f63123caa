"""The memory wire: what a NATS server and its clients do, inside one process, on loop time, with seeded faults.

For tests and simulations. Deterministic for a given seed on a virtual loop.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from shared.errors import BusClosed, BusFull, RequestTimeout, TooBig
from shared.memstreams import MemoryStreams
from shared.subjects import matches
from shared.wire import NO_RESPONDERS_STATUS, STATUS_HEADER, BusCounts, Listening, Receive, Wanted

MAX_PAYLOAD_BYTES = 1 << 20
"""A NATS server's default."""
OUTBOUND_BYTES = 32 << 20
MAX_SUBJECTS = 1024
"""Subjects whose readers are remembered."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong with messages of one kind; each ratio is a probability for each delivery."""

    drop_ratio: float = 0.0
    duplicate_ratio: float = 0.0
    reorder_ratio: float = 0.0
    """Such a message comes up to `delay_s` later than its turn, so that others overtake it."""
    delay_s: float = 0.0
    """Deliveries take up to this long; those of one sender's subject keep their order."""


class Frame(NamedTuple):
    """What travels."""

    subject: str
    payload: bytes
    reply: str
    headers: Mapping[str, str] | None


class MemoryListening:
    """Interest of one wire in one pattern."""

    def __init__(self, wire: MemoryWire, pattern: str, receive: Receive, queue: str) -> None:
        self.wire = wire
        self.parts = pattern.split(".")
        self.queue = queue
        self._receive = receive
        self._open = True
        self._scheduled = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.due_s: dict[str, float] = {}
        """Latest delivery time for each subject: order is kept by never delivering earlier."""

    @property
    def is_open(self) -> bool:
        """Whether new frames are still taken."""
        return self._open and self.wire.is_connected

    def expect(self) -> None:
        """Note that a delivery is planned."""
        self._scheduled += 1
        self._idle.clear()

    def deliver(self, frame: Frame) -> None:
        """Hand an expected frame over."""
        self._scheduled -= 1
        if not self._scheduled:
            self._idle.set()
        if self.wire.is_frozen:
            self.wire.arrived.append((self, frame))
        elif not self.wire.is_cut:
            self.take(frame)

    def take(self, frame: Frame) -> None:
        """Hand a frame to its reader."""
        self._receive(frame.subject, frame.payload, frame.reply, frame.headers)

    async def close(self) -> None:
        """See `Listening.close`."""
        self._open = False
        self._receive = _ignore
        self.wire.hub.forget(self)

    async def drain(self) -> None:
        """See `Listening.drain`."""
        self._open = False
        await self._idle.wait()
        await self.close()


def _ignore(_: str, __: bytes, ___: str, ____: Mapping[str, str] | None) -> None:
    """Take a frame that came after its interest was closed."""


class MemoryHub:
    """The server: knows all interest, carries all frames."""

    def __init__(self, *, seed: int = 0, max_payload: int = MAX_PAYLOAD_BYTES) -> None:
        self.max_payload = max_payload
        self.streams: MemoryStreams | None = MemoryStreams()
        """None: as a server without JetStream."""
        self._random = random.Random(seed)  # noqa: S311 - seeded on purpose
        self._listening: list[MemoryListening] = []
        self._interested: dict[str, list[MemoryListening]] = {}
        """By subject, since the last change of interest."""
        self._faults: dict[str, Faults] = {}
        self._numbers = itertools.count()
        self._planned: list[tuple[float, int, MemoryListening, Frame]] = []

    def set_faults(self, pattern: str, faults: Faults) -> None:
        """Let frames on subjects of a pattern suffer from now on; replies have subjects of their own (`_INBOX.>`)."""
        self._faults[pattern] = faults

    def add(self, listening: MemoryListening) -> None:
        """Register interest."""
        self._listening.append(listening)
        self._interested.clear()

    def forget(self, listening: MemoryListening) -> None:
        """Drop interest; unknown interest is ignored."""
        if listening in self._listening:
            self._listening.remove(listening)
            self._interested.clear()

    def of(self, wire: MemoryWire) -> list[MemoryListening]:
        """Return all interest of one wire."""
        return [one for one in self._listening if one.wire is wire]

    def next_inbox(self) -> str:
        """Return a reply prefix that no other wire has."""
        return f"_INBOX.m{next(self._numbers)}"

    def carry(self, sender: MemoryWire, frame: Frame) -> None:
        """Bring a frame to everybody interested, and to one member of each queue group."""
        if self.streams is not None:
            answers = self.streams.publish(frame.subject, frame.payload, frame.headers)
            if frame.reply and not answers:
                answers = self.streams.answer(frame.subject, frame.payload)
            answers = answers if frame.reply else []
            for headers, payload in answers:
                self.carry(sender, Frame(frame.reply, payload, "", headers))
            if answers:
                return
        parts = frame.subject.split(".")
        found = [one for one in self._interest_in(frame.subject, parts) if one.is_open]
        if not found and frame.reply:
            self.carry(sender, Frame(frame.reply, b"", "", {STATUS_HEADER: NO_RESPONDERS_STATUS}))
            return
        faults = self._faults_of(parts)
        for listening in self._one_of_each_queue(found):
            for at_s in self._moments(listening, frame.subject, faults):
                self._plan(listening, frame, at_s)

    def _interest_in(self, subject: str, parts: list[str]) -> list[MemoryListening]:
        known = self._interested.get(subject)
        if known is None:
            if len(self._interested) >= MAX_SUBJECTS:
                self._interested.clear()
            known = [one for one in self._listening if matches(one.parts, parts)]
            self._interested[subject] = known
        return known

    def _plan(self, listening: MemoryListening, frame: Frame, at_s: float) -> None:
        listening.expect()
        heapq.heappush(self._planned, (at_s, next(self._numbers), listening, frame))
        asyncio.get_running_loop().call_at(at_s, self._deliver_until, at_s)

    def _deliver_until(self, at_s: float) -> None:
        """Deliver in order of time and, within the same moment, of sending; the loop's own timers promise no order there."""
        while self._planned and self._planned[0][0] <= at_s:
            _, _, listening, frame = heapq.heappop(self._planned)
            listening.deliver(frame)

    def _one_of_each_queue(self, found: list[MemoryListening]) -> Iterator[MemoryListening]:
        yield from (one for one in found if not one.queue)
        for queue in sorted({one.queue for one in found if one.queue}):
            yield self._random.choice([one for one in found if one.queue == queue])

    def _faults_of(self, parts: list[str]) -> Faults:
        for pattern, faults in self._faults.items():
            if matches(pattern.split("."), parts):
                return faults
        return Faults()

    def _moments(self, to: MemoryListening, subject: str, faults: Faults) -> Iterator[float]:
        """Yield when a frame is delivered: never, once or twice."""
        draw = self._random.random
        now_s = asyncio.get_running_loop().time()
        if draw() < faults.drop_ratio:
            return
        at_s = max(now_s + draw() * faults.delay_s, to.due_s.get(subject, now_s))
        to.due_s[subject] = at_s
        late_s = draw() * faults.delay_s if draw() < faults.reorder_ratio else 0.0
        yield at_s + late_s
        if draw() < faults.duplicate_ratio:
            yield at_s + late_s + draw() * faults.delay_s


class MemoryWire:
    """One participant's connection. See `Wire`."""

    def __init__(self, hub: MemoryHub, *, outbound_bytes: int = OUTBOUND_BYTES) -> None:
        self.hub = hub
        self.counts = BusCounts()
        self.is_cut = False
        self.is_frozen = False
        self.arrived: list[tuple[MemoryListening, Frame]] = []
        """What came while frozen."""
        self._closed = False
        self._bound = outbound_bytes
        self._waiting: list[tuple[Frame, Wanted | None]] = []
        self._waiting_bytes = 0
        self._connected = asyncio.Event()
        self._connected.set()

    def cut(self) -> None:
        """Disconnect from the hub: what is sent waits, what comes is lost."""
        self.is_cut = True
        self._connected.clear()

    def heal(self) -> None:
        """Connect again and send what waited."""
        self.is_cut = False
        self._send_waiting()

    def freeze(self) -> None:
        """Stand still as a network does that loses nothing: what is sent and what comes waits."""
        self.is_frozen = True
        self._connected.clear()

    def thaw(self) -> None:
        """Go on."""
        self.is_frozen = False
        arrived, self.arrived = self.arrived, []
        for listening, frame in arrived:
            listening.take(frame)
        self._send_waiting()

    def _send_waiting(self) -> None:
        self._connected.set()
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        for frame, wanted in waiting:
            if wanted is None or not wanted.done():
                self.hub.carry(self, frame)

    def send(
        self,
        subject: str,
        payload: bytes,
        *,
        reply: str = "",
        headers: dict[str, str] | None = None,
        wanted: Wanted | None = None,
    ) -> None:
        """See `Wire.send`."""
        if self._closed:
            raise BusClosed("the bus is closed")
        if len(payload) > self.max_payload:
            raise TooBig(len(payload), self.max_payload)
        frame = Frame(subject, payload, reply, headers)
        if not (self.is_cut or self.is_frozen):
            self.hub.carry(self, frame)
            return
        if self._waiting_bytes + len(payload) > self._bound:
            raise BusFull(f"{self._waiting_bytes} bytes wait to be sent: the bus is away")
        self._waiting.append((frame, wanted))
        self._waiting_bytes += len(payload)

    async def listen(self, pattern: str, receive: Receive, *, queue: str = "") -> Listening:
        """See `Wire.listen`."""
        if self._closed:
            raise BusClosed("the bus is closed")
        listening = MemoryListening(self, pattern, receive, queue)
        self.hub.add(listening)
        return listening

    def new_inbox(self) -> str:
        """See `Wire.new_inbox`."""
        return self.hub.next_inbox()

    async def flush(self, *, timeout_s: float) -> None:
        """See `Wire.flush`."""
        if self._closed:
            raise BusClosed("the bus is closed")
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            raise RequestTimeout(f"the bus did not answer within {timeout_s:g} s") from None

    @property
    def is_connected(self) -> bool:
        """See `Wire.is_connected`."""
        return not self._closed and not self.is_cut

    @property
    def is_answering(self) -> bool:
        """See `Wire.is_answering`."""
        return self.is_connected and not self.is_frozen

    @property
    def max_payload(self) -> int:
        """See `Wire.max_payload`."""
        return self.hub.max_payload

    async def close(self) -> None:
        """See `Wire.close`."""
        self._closed = True
        self._connected.set()
        for listening in self.hub.of(self):
            await listening.close()
