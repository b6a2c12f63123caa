"""The NATS wire: nats-py behind the `Wire` port, through its public API but for the places that say so.

nats-py's `publish` is a coroutine, ours is not. As long as its buffer has room it never suspends, so it is run to its end at once
(`_hand_on`); else, and while the server is away, frames wait in a bounded queue of ours that one task empties in order.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from nats.aio.subscription import Subscription as NatsSubscription

from shared import logs
from shared.errors import BusClosed, BusFull, RequestTimeout, TooBig
from shared.natsclient import Client, Msg, Server, errors
from shared.natspings import TROUBLE, Pings
from shared.natstransport import SteadyTransport
from shared.quiet import Quiet
from shared.wire import BusCounts, Listening, Receive, Wanted

EASE_BYTES = 1 << 20
"""nats-py's unsent bytes at which the sender waits for the server."""
CLIENT_BUFFER_BYTES = 16 << 20
"""nats-py's own bound: far above `EASE_BYTES` plus one message, for users of the raw client."""
ROUND_TRIPS = 2
RETRY_S = 0.2
MAX_BACK_OFF_S = 2.0
CONFIRM_S = 10.0
CLOSE_S = 1.0
STUCK_S = 30.0
"""Longer than an attempt to reconnect can take, its pause included: without a newer one the client has stopped trying."""
WATCH_S = 2.0
FRAME_BYTES = 256
"""What a waiting frame takes beside its payload, about."""


class Frame(NamedTuple):
    """What waits to be sent."""

    subject: str
    payload: bytes
    reply: str
    headers: dict[str, str] | None
    wanted: Wanted | None


class NatsWire:
    """See `Wire`. Callbacks of the client (`on_…`) are to be registered by who connects it."""

    def __init__(
        self,
        client: Client,
        *,
        group: asyncio.TaskGroup,
        name: str,
        outbound_bytes: int,
        pending_messages: int,
        pending_bytes: int,
    ) -> None:
        self.client = client
        self._transport = SteadyTransport()
        client._transport = self._transport  # noqa: SLF001 - no public way to choose it
        self._group = group
        self._log = logs.get("bus").bind(bus=name)
        self._clock = asyncio.get_running_loop().time
        self._quiet = Quiet(self._clock)
        self._bound = outbound_bytes
        self._limits = (pending_messages, pending_bytes)
        self._queue: deque[Frame] = deque()
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._connected = asyncio.Event()
        self._connected.set()
        self._closed = False
        self._listening: set[_Listening] = set()
        self._pings = Pings(client, group)
        self._sender: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._probe: asyncio.Task[None] | None = None
        self._tried_s = 0.0
        """When the client last showed that it tries to reconnect."""
        self._max_payload = client.max_payload
        self.report_loss: Callable[[str], None] = lambda reason: None
        """Set by the bus: messages to us may be lost."""
        self.counts = BusCounts()

    def start(self) -> None:
        """Begin to send; once, after the client has connected."""
        self._max_payload = self.client.max_payload
        self._sender = self._group.create_task(self._send_all(), name="bus sender")
        self._watch = self._group.create_task(self._watch_reconnecting(), name="bus watch")
        self._probe = self._group.create_task(self._pings.probe_forever(), name="bus probe")

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
        size = len(payload)
        if self._closed:
            raise BusClosed("the bus is closed")
        if size > self._max_payload:
            raise TooBig(size, self._max_payload)
        client = self.client
        if not self._queue and client.is_connected and client.pending_data_size <= EASE_BYTES:
            self._hand_on(subject, payload, reply, headers)
            return
        size += FRAME_BYTES
        if self._queued_bytes + size > self._bound:
            state = "slow" if client.is_connected else "away"
            raise BusFull(f"{self._queued_bytes} bytes wait to be sent: the NATS server is {state}")
        self._wake.set()
        self._empty.clear()
        self._queue.append(Frame(subject, payload, reply, headers, wanted))
        self._queued_bytes += size

    async def listen(self, pattern: str, receive: Receive, *, queue: str = "") -> Listening:
        """See `Wire.listen`. While the server is away, interest becomes active with the reconnect."""
        if self._closed:
            raise BusClosed("the bus is closed")

        async def on_message(message: Msg) -> None:
            receive(message.subject, message.data, message.reply, message.headers)

        messages, size = self._limits
        try:
            subscription = await self.client.subscribe(
                pattern,
                queue=queue,
                cb=on_message,
                pending_msgs_limit=messages,
                pending_bytes_limit=size,
            )
        except TROUBLE as error:
            raise BusClosed(f"cannot subscribe: {error}") from error
        listening = _Listening(subscription, self._listening)
        self._listening.add(listening)
        if self.client.is_connected:
            await self._confirm(listening)
        return listening

    async def _confirm(self, listening: _Listening) -> None:
        """Return when the server knows of the interest; give the interest up where it does not answer."""
        try:
            async with asyncio.timeout(CONFIRM_S):
                await self._round_trips()
        except TimeoutError:
            await listening.close()
            raise RequestTimeout(
                f"the NATS server confirmed no subscription within {CONFIRM_S:g} s"
            ) from None

    def new_inbox(self) -> str:
        """See `Wire.new_inbox`."""
        return self.client.new_inbox()

    async def flush(self, *, timeout_s: float) -> None:
        """See `Wire.flush`."""
        try:
            async with asyncio.timeout(timeout_s):
                if self._sender is None or self._sender.done():
                    raise BusClosed("the service is ending")
                await self._empty.wait()
                await self._round_trips()
        except TimeoutError:
            raise RequestTimeout(f"the NATS server did not answer within {timeout_s:g} s") from None

    @property
    def is_connected(self) -> bool:
        """See `Wire.is_connected`."""
        return not self._closed and self.client.is_connected

    @property
    def is_answering(self) -> bool:
        """See `Wire.is_answering`."""
        return self.is_connected and not self._pings.are_late

    @property
    def max_payload(self) -> int:
        """See `Wire.max_payload`."""
        return self._max_payload

    async def close(self) -> None:
        """See `Wire.close`. What is queued leaves if the server is there."""
        if self._closed:
            return
        self._closed = True
        self._connected.set()
        for task in (self._sender, self._watch, self._probe):
            if task is not None:
                task.cancel()
        self._pings.cancel()
        while self._queue and self.client.is_connected:
            self._send_oldest()
        if not await self.end_client():
            self._log.warning("bus_close_incomplete", unsent=len(self._queue))
            for listening in self._listening:
                listening.abandon()

    def abort(self) -> None:
        """Drop the connection of a client that was never whole, without waiting for anything."""
        self._transport.abort()

    async def end_client(self) -> bool:
        """Close the client whatever the connection does; return whether it could say goodbye."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.client.close()
        except TROUBLE:  # a TimeoutError is an OSError
            self._transport.abort()
            return False
        return True

    def next_server(self, servers: list[Server], _: dict[str, Any]) -> tuple[Server, float]:
        """Client callback: choose the server that failed least; wait longer each time, with jitter against a returning crowd."""
        self._tried_s = self._clock()
        self._end_leftovers()
        server = min(servers, key=lambda s: s.reconnects)
        wait_s = min(MAX_BACK_OFF_S, RETRY_S * 2 ** min(server.reconnects, 10))
        return server, wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing

    def _end_leftovers(self) -> None:
        """End the tasks of an attempt that failed late: nats-py 2.16 forgets them, and their PINGs add up to a false alarm."""
        client = self.client
        for task in (client._reading_task, client._ping_interval_task, client._flusher_task):  # noqa: SLF001 - see above
            if task is not None:
                task.cancel()

    async def on_disconnected(self) -> None:
        """Client callback: the connection broke."""
        self._connected.clear()
        self._tried_s = self._clock()
        self._pings.cancel()
        if self._sender is not None and not self._closed:
            self._log.warning("bus_disconnected", error=str(self.client.last_error or ""))

    async def on_reconnected(self) -> None:
        """Client callback: connected again, subscriptions are replayed."""
        self._max_payload = self.client.max_payload
        self._connected.set()
        self._log.info("bus_reconnected")
        self.report_loss("reconnect")

    async def on_closed(self) -> None:
        """Client callback: the client gave up; unless we asked for it, the sender fails and with it the service."""
        self._connected.set()
        self._wake.set()

    async def on_error(self, error: Exception) -> None:
        """Client callback: trouble that nobody awaits."""
        if isinstance(error, errors.SlowConsumerError):
            self.report_loss("slow reader")
        else:
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        what = type(error).__name__
        if times := self._quiet.due(what):
            known = isinstance(error, OSError | errors.Error)
            trace = None if known else error
            self._log.warning(
                "bus_trouble", kind=what, error=str(error), times=times, exc_info=trace
            )

    async def _send_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await self._until_sendable()
                self._send_oldest()
            self._empty.set()
            self._check_alive()

    def _send_oldest(self) -> None:
        frame = self._queue.popleft()
        self._queued_bytes -= len(frame.payload) + FRAME_BYTES
        if frame.wanted is None or not frame.wanted.done():
            self._hand_on(frame.subject, frame.payload, frame.reply, frame.headers)

    async def _until_sendable(self) -> None:
        while True:
            self._check_alive()
            if not self.client.is_connected:
                self._connected.clear()
                await self._connected.wait()
            elif self.client.pending_data_size > EASE_BYTES:
                await self._pings.ping()
            else:
                return

    async def _watch_reconnecting(self) -> None:
        """Fail, and with us the service, where the client's reconnecting has ended by an error that nobody sees."""
        while True:
            await asyncio.sleep(WATCH_S)
            away_s = self._clock() - self._tried_s
            if not self._connected.is_set() and not self.client.is_closed and away_s > STUCK_S:
                raise BusClosed("reconnecting to the NATS server has stopped")

    def _check_alive(self) -> None:
        if self.client.is_closed and not self._closed:
            raise BusClosed(
                f"the NATS server ended the connection for good: {self.client.last_error}"
            )

    def _hand_on(
        self, subject: str, payload: bytes, reply: str, headers: dict[str, str] | None
    ) -> None:
        """Put a frame into the client's buffer. To be called only while there is room in it."""
        publishing = self.client.publish(subject, payload, reply, headers)
        try:
            publishing.send(None)
        except StopIteration:
            return
        except TROUBLE as error:
            self.counts.unsent += 1
            self._tell(error)
        else:
            # It waits for the socket although there was room; what it wanted to send is in the buffer by then.
            publishing.close()

    async def _round_trips(self) -> None:
        """Return when the server has seen what the client holds now: nats-py's PING overtakes unsent frames, the second one can't."""
        trips = 0
        while trips < ROUND_TRIPS:
            if self._closed or self.client.is_closed:
                raise BusClosed("the bus is closed")
            if not self.client.is_connected:
                await self._connected.wait()
            trips += await self._pings.ping()


class _Listening:
    """One nats-py subscription; leaves the wire's set when it has ended."""

    def __init__(self, subscription: NatsSubscription, all_listening: set[_Listening]) -> None:
        self._subscription = subscription
        self._all = all_listening

    async def close(self) -> None:
        """See `Listening.close`."""
        self._all.discard(self)
        with suppress(*TROUBLE):  # closed before, or the client is
            await self._subscription.unsubscribe()

    async def drain(self) -> None:
        """See `Listening.drain`."""
        with suppress(*TROUBLE):
            await self._subscription.drain()  # type: ignore[no-untyped-call] # nats-py's gap
            self._all.discard(self)

    def abandon(self) -> None:
        """End the reading task where the client's own `close` did not come to it: it waits for, or fails on, a dead connection first."""
        self._subscription._stop_processing()  # noqa: SLF001 - nothing public does it once `drain` was begun
