"""What requests need of vLLM's block pool: at worst, beyond what they hold, and less what others have in use already."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from typing_extensions import override
from vllm.v1.request import RequestStatus

from services.engine.answer_lengths import AnswerLengths

HIT_STEPS = 8
"""For so many steps a look-up of cached blocks holds, unless somebody starts or ends: those who run may have computed more by then."""
_WHOLE = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
_is_null = attrgetter("is_null")


class BlockNeeds:
    """Reads a scheduler; changes nothing."""

    def __init__(self, scheduler: Any, *, open_answer_tokens: int | None) -> None:
        self._scheduler = scheduler
        manager = scheduler.kv_cache_manager
        self._pool = manager.block_pool
        self._coordinator = manager.coordinator
        self._none = manager.empty_kv_cache_blocks.blocks
        self._tables = [each.req_to_blocks for each in self._coordinator.single_type_managers]
        self._is_plain = len(self._tables) == 1 and not _recycles(
            self._coordinator.single_type_managers[0]
        )
        self._context = scheduler.max_model_len
        # Drafts have slots of their own until they are verified.
        self._ahead = scheduler.num_lookahead_tokens + scheduler.num_spec_tokens
        self._open = open_answer_tokens
        self.answers = AnswerLengths(self._context)
        self._hits: dict[str, tuple[int, int, int]] = {}
        self.epoch = 0
        """Counts up when somebody starts or ends."""

    @override
    def __repr__(self) -> str:
        return f"<BlockNeeds of {self.total} blocks, {self.answers!r}>"

    @property
    def total(self) -> int:
        """Blocks of the pool; one is vLLM's own."""
        return int(self._pool.num_gpu_blocks) - 1

    def tokens(self, request: Any) -> int:
        """Return how many tokens a request may come to, as far as that is promised."""
        most = request.num_prompt_tokens + request.max_tokens
        if most >= self._context:
            expected = max(1, self.answers.tokens if self._open is None else self._open)
            # One that has outgrown this before is promised as much again.
            grown = request.num_prompt_tokens + expected * (
                1 + request.num_output_tokens // expected
            )
            most = min(most, grown)
        return int(min(most + self._ahead, self._context))

    def blocks(self, tokens: int) -> int:
        """Return the blocks for so many tokens of one request, of which none is there."""
        needed: int = self._coordinator.get_num_blocks_to_allocate(
            request_id="",
            num_tokens=tokens,
            new_computed_blocks=self._none,
            num_encoder_tokens=0,
            total_computed_tokens=0,
            num_local_computed_tokens=0,
            num_tokens_main_model=tokens,
            apply_admission_cap=True,
            prefill_end=tokens,
        )
        return needed

    def held(self, ref: str) -> int:
        """Return the blocks that a request has now."""
        if self._is_plain:
            return len(self._tables[0].get(ref, ()))
        return sum(
            len(blocks) - sum(map(_is_null, blocks))
            for blocks in (table.get(ref, ()) for table in self._tables)
        )

    def held_with_others(self, ref: str) -> int:
        """Return the blocks that a request has in common with others that run."""
        tables = (table.get(ref, ()) for table in self._tables)
        return sum(block.ref_cnt > 1 and not block.is_null for each in tables for block in each)

    def uncommitted(self, promised: Mapping[str, int]) -> tuple[int, list[str]]:
        """Return the free blocks that nobody is promised, and who has more than promised."""
        owed, over = 0, []
        if self._is_plain:
            table = self._tables[0]
            for ref, need in promised.items():
                more = need - len(table[ref]) if ref in table else need
                if more > 0:
                    owed += more
                elif more < 0:
                    over.append(ref)
        else:
            for ref, need in promised.items():
                more = need - self.held(ref)
                if more > 0:
                    owed += more
                elif more < 0:
                    over.append(ref)
        return int(self._pool.get_num_free_blocks()) - owed, over

    def shared(self, request: Any) -> int:
        """Return how many cached blocks of a request's prompt others have in use, which so take no free ones."""
        if request.num_computed_tokens or request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            return 0
        window = self._scheduler.current_step // HIT_STEPS
        known = self._hits.get(request.request_id)
        if known is not None and known[:2] == (self.epoch, window):
            return known[2]
        groups = self._scheduler._get_local_prefix_cache_hit(request)[0].blocks  # noqa: SLF001 - vLLM's seam
        found: int = sum(
            block.ref_cnt > 0 and not block.is_null for each in groups for block in each
        )
        self._hits[request.request_id] = self.epoch, window, found
        return found

    def ended(self, request: Any) -> None:
        """Learn from a request that is over, and let go of what is known of it."""
        self._hits.pop(request.request_id, None)
        is_open = request.num_prompt_tokens + request.max_tokens >= self._context
        if is_open and request.status in _WHOLE:
            self.answers.add(request.num_output_tokens)


def _recycles(manager: Any) -> bool:
    """Return whether a kind of cache gives blocks back while a request runs (sliding windows, state of recurrent layers)."""
    kind = type(manager).__name__
    return manager.max_admission_blocks_per_request is not None or "FullAttention" not in kind
