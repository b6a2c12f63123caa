"""What vLLM's cache events say of blocks, and the blocks of a prompt, as a part of the record of a step. Runs in the core's process.

vLLM hands all events of a step, those of its block pool and those of a KV connector, to one publisher. `EventTee` stands in that place
and keeps what it needs; a publisher that somebody configured still gets everything.
"""

from __future__ import annotations

from typing import Any, Self

from typing_extensions import override
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import (
    MEDIUM_CPU,
    MEDIUM_GPU,
    MEDIUM_STORAGE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    EventPublisher,
)

from services.engine.warmth.blocks import BlockNews, Moved, PromptBlocks, prompt_blocks
from shared.messages import WARM_L1, WARM_L2, WARM_L3
from shared.prefixes import HASH_BYTES, packed

TIERS = {MEDIUM_GPU: WARM_L1, None: WARM_L1, MEDIUM_CPU: WARM_L2, MEDIUM_STORAGE: WARM_L3}
"""Also on the CPU platform the block pool's own medium is called `GPU`."""
_MASK = (1 << 8 * HASH_BYTES) - 1


def events_config() -> dict[str, Any]:
    """Return vLLM's argument that has events made, and sent nowhere but here."""
    return {"enable_kv_cache_events": True, "publisher": "null"}


def tells_blocks(config: Any) -> bool:
    """Return whether events are made with this configuration of vLLM's."""
    events: KVEventsConfig | None = config.kv_events_config
    return events is not None and events.enable_kv_cache_events


def name_of(block_hash: bytes | int) -> int:
    """Return the name of a block: the last 64 bits of its hash, which are all of it where vLLM makes numbers of hashes."""
    if isinstance(block_hash, int):
        return block_hash & _MASK
    return int.from_bytes(block_hash[-HASH_BYTES:], "big")


class EventTee(EventPublisher):
    """Takes events, keeps which blocks moved, passes all on."""

    def __init__(self, behind: EventPublisher) -> None:
        super().__init__()
        self._behind = behind
        self._runs: list[tuple[int, bool, list[int]]] = []
        """Tier, whether they are there, blocks: as long as neither changes, one entry."""
        self._is_cleared = False

    @classmethod
    def before(cls, scheduler: Any) -> Self:
        """Put one before the publisher of a scheduler."""
        tee = cls(scheduler.kv_event_publisher)
        scheduler.kv_event_publisher = tee
        return tee

    @override
    def publish(self, events: EventBatch) -> None:
        """Take the events of a step."""
        for event in events.events:
            if isinstance(event, BlockRemoved):
                self._note(event.medium, False, event.block_hashes)
            elif isinstance(event, BlockStored):
                # What comes into the pool itself is told with its prompt.
                if TIERS.get(event.medium, 0) != WARM_L1:
                    self._note(event.medium, True, event.block_hashes)
            elif isinstance(event, AllBlocksCleared):
                self._is_cleared = True
                self._runs = [run for run in self._runs if run[0] != WARM_L1]
        self._behind.publish(events)

    @override
    def shutdown(self) -> None:
        """End what is behind."""
        self._behind.shutdown()

    @override
    def get_publisher_config(self) -> KVEventsConfig | None:
        """Return that of what is behind."""
        return self._behind.get_publisher_config()

    def put_into(self, news: BlockNews | None) -> BlockNews | None:
        """Return the news of a step with what moved until now; none where there is nothing."""
        if not self._runs and not self._is_cleared:
            return news
        news = news or BlockNews()
        news.moved = [Moved(tier, is_there, packed(names)) for tier, is_there, names in self._runs]
        news.is_cleared = self._is_cleared
        self._runs, self._is_cleared = [], False
        return news

    def _note(self, medium: str | None, is_there: bool, hashes: list[Any]) -> None:
        tier = TIERS.get(medium, 0)
        if not tier:
            return
        if not self._runs or self._runs[-1][:2] != (tier, is_there):
            self._runs.append((tier, is_there, []))
        self._runs[-1][2].extend(map(name_of, hashes))


def blocks_of(request: Any, *, block_tokens: int) -> PromptBlocks | None:
    """Return the full blocks of a request's prompt; none where prefixes are not cached."""
    count = request.num_prompt_tokens // block_tokens
    names = [name_of(block_hash) for block_hash in request.block_hashes[:count]]
    return prompt_blocks(
        request.request_id,
        tokens=request.num_prompt_tokens,
        block_tokens=block_tokens,
        hashes=names,
    )
