"""The waiting queue of vLLM's scheduler, by our rules: it shows only whoever may start now, and says that it is empty where that is nobody.

What vLLM takes from it with its first blocks is promised the rest. What vLLM takes aside without (its grammar is not ready, its LoRA
adapter has no place, a lower tier is still being asked) is promised nothing, so that it holds up nobody, and keeps its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from typing_extensions import override
from vllm.v1.core.sched.request_queue import RequestQueue

from services.engine.adapters.vllm_blocks import BlockNeeds
from services.engine.reserve import Reserve
from services.engine.steps.step import Queued
from shared.clock import Clock

NOTABLE_S = 0.001
"""A shorter wait for blocks is not told."""


class ReservedQueue(RequestQueue):
    """For one scheduler. Its time is that of the last `look`."""

    def __init__(self, reserve: Reserve, needs: BlockNeeds, clock: Clock, *, ranks: bool) -> None:
        """`ranks`: whether the scheduler goes by priority."""
        self.reserve = reserve
        self._needs = needs
        self._clock = clock
        self._ranks = ranks
        self._requests: dict[str, Any] = {}
        self.promised: dict[str, int] = {}
        """Blocks by request, of those that were taken from here."""
        self.queued: list[Queued] = []
        """Who started since this was emptied, and how long it had waited for blocks."""
        self._now = 0.0
        self.uncommitted = 0
        """Free blocks that nobody is promised, of the last look or start."""
        self._offer: str | None = None
        self._is_known = False
        """Whether the offer still holds."""

    @override
    def __repr__(self) -> str:
        return f"<ReservedQueue {self.reserve!r}>"

    def look(self) -> None:
        """Find out who may start, at the begin of a step."""
        self._now = self._clock()
        self.uncommitted, over = self._needs.uncommitted(self.promised)
        for ref in over:
            self.promised[ref] = held = self._needs.held(ref)
            self.reserve.grow(ref, held)
        self._is_known = False
        self._next()

    def uncommitted_now(self) -> int:
        """Return the free blocks that nobody is promised."""
        return self._needs.uncommitted(self.promised)[0]

    def end(self, request: Any) -> None:
        """Forget a request that has ended."""
        ref = request.request_id
        if self._requests.pop(ref, None) is None:
            return
        self.promised.pop(ref, None)
        self.reserve.drop(ref)
        self._needs.ended(request)
        self._changed()

    # --- what vLLM calls

    @override
    def add_request(self, request: Any) -> None:
        ref, tokens = request.request_id, self._needs.tokens(request)
        need = self._needs.blocks(tokens)
        self._is_known = False
        if ref in self.reserve:
            # It has lost its blocks.
            self.promised.pop(ref, None)
            self.reserve.back(ref, need=need)
            self._changed()
            return
        self._requests[ref] = request
        rank = request.priority if self._ranks else 1
        self.reserve.join(ref, need=need, tokens=tokens, rank=rank, now=self._clock())

    @override
    def prepend_request(self, request: Any) -> None:
        self.add_request(request)

    @override
    def prepend_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            if request.request_id in self.reserve:
                self.promised.pop(request.request_id, None)
                self.reserve.back(request.request_id)
            else:
                self.add_request(request)
        self._is_known = False

    @override
    def peek_request(self) -> Any:
        ref = self._next()
        if ref is None:
            raise IndexError("nobody may start now")
        return self._requests[ref]

    @override
    def pop_request(self) -> Any:
        request = self.peek_request()
        ref = request.request_id
        self._is_known = False
        if not self._needs.held(ref):
            # One that starts, or is loaded, has its first blocks by now.
            self.reserve.set_aside(ref)
            return request
        need, shared = self.reserve.need_of(ref), self._needs.held_with_others(ref)
        waited_s = self.reserve.start(ref, self._now, shared=min(shared, need))
        if waited_s > NOTABLE_S:
            self.queued.append(Queued(ref, int(waited_s * 1e6)))
        self.promised[ref] = need
        self.uncommitted -= max(0, need - shared)
        self._changed()
        return request

    @override
    def remove_request(self, request: Any) -> None:
        self.end(request)

    @override
    def remove_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            self.end(request)

    @override
    def __bool__(self) -> bool:
        return self._next() is not None

    @override
    def __len__(self) -> int:
        return self.reserve.waiting

    @override
    def __iter__(self) -> Iterator[Any]:
        return (self._requests[ref] for ref in self.reserve.order)

    # --- the offer

    def _next(self) -> str | None:
        if not self._is_known:
            self._is_known = True
            self._offer = (
                self.reserve.next(self._now, self.uncommitted, self._shared)
                if self.reserve.waiting
                else None
            )
        return self._offer

    def _shared(self, ref: str) -> int:
        return self._needs.shared(self._requests[ref]) if self.promised else 0

    def _changed(self) -> None:
        self._needs.epoch += 1
        self._is_known = False
