"""The port to the message bus. `shared.membus` and `shared.natsbus` implement it; one contract suite tests both.

A subject is computed from the route and the message's own fields: a wrong subject cannot be typed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from shared.errors import BusError
from shared.messages import Message

M = TypeVar("M", bound=Message)

Handler = Callable[[M], None]
"""Synchronous, runs on the loop right when the message arrives: must be short, must not raise (it is counted and logged if it does)."""

Server = Callable[[M], Awaitable[Message]]
"""Answers a request. Runs as a task of its own, at most `max_pending` at once. An exception is answered as `RemoteFailed`."""

OnAnswer = Callable[[Message | BusError], None]
"""Takes the reply to a message, or why there is none. As a `Handler`: short, and must not raise."""


class Subscription(Protocol):
    """An active interest."""

    async def close(self) -> None:
        """Stop receiving. A second call changes nothing."""
        ...


class Bus(Protocol):
    """Typed publish, subscribe and request."""

    def publish(self, message: Message) -> None:
        """Send without waiting; never blocks. While disconnected messages are buffered up to the bound.

        Raises `BusFull` (the bound is reached), `TooBig`, `BusClosed`, and `UserError` where a field cannot be part of a subject.
        """
        ...

    async def request(self, message: Message, *, timeout_s: float) -> Message:
        """Send and await the one reply.

        Raises `NoResponder` at once where nobody listens, `RemoteBusy` at once where too many calls run, `RequestTimeout`, `RemoteFailed`,
        `Undecodable` (the reply is none), `BusFull`, `TooBig`, `BusClosed`.
        """
        ...

    def ask(self, message: Message, *, timeout_s: float, on_answer: OnAnswer) -> None:
        """Send, and call back with the one reply or with why there is none: as `request`, at a third of its price.

        `on_answer` is called once, later, on the loop; not at all where this raises `BusFull`, `TooBig`, `BusClosed`.
        """
        ...

    async def subscribe(
        self, kind: type[M], handler: Handler[M], *, queue: str = "", **keys: str
    ) -> Subscription:
        """Receive messages of a type; `keys` fix fields of the subject, the others match anything.

        Interest is active at the server on return. Order holds within one subscription, not across two.
        Raises `BusClosed`, and `RequestTimeout` where the server does not answer.
        """
        ...

    async def serve(
        self, kind: type[M], server: Server[M], *, max_pending: int = 1024, **keys: str
    ) -> Subscription:
        """Answer requests of a type. Beyond `max_pending` running calls a request is answered as `RemoteBusy` at once."""
        ...

    def on_loss(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with a reason whenever messages to this bus may have been lost: we read too slowly, or the server was away."""
        ...

    async def flush(self, *, timeout_s: float) -> None:
        """Return when the server has seen all that was published. Raises `RequestTimeout`, `BusClosed`."""
        ...

    @property
    def is_connected(self) -> bool:
        """Whether a publish would leave now."""
        ...

    @property
    def is_answering(self) -> bool:
        """Whether the server has answered lately. While it has not, the silence of others says nothing about them."""
        ...

    async def close(self, *, drain_s: float = 2.0) -> None:
        """Deliver what has arrived, flush what was published within `drain_s`, and end. A second call changes nothing."""
        ...
