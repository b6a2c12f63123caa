"""What the records say of blocks, by vLLM's own pool and events, without a model: a prompt's blocks are there, those evicted are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.engine.steps.step import Step
from services.engine.warmth.map import BlockMap
from services.engine.warmth.pieces import PieceBook
from shared.messages import WARM_L1, WARM_L2, WARM_L3, TokensPrompt
from shared.prefixes import chain_of, unpacked
from tests.support.vllm_rig import imported_vllm

imported_vllm()

from vllm.distributed.kv_events import (  # noqa: E402 - as above
    MEDIUM_CPU,
    MEDIUM_STORAGE,
    BlockRemoved,
    BlockStored,
    EventBatch,
    EventPublisher,
)

from services.engine.adapters.vllm_warmth import EventTee, name_of  # noqa: E402
from tests.support.vllm_core import BLOCK, Core, tiny_model  # noqa: E402 - vLLM is imported above


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration that vLLM takes for a model."""
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(params=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    """Which of the two schedulers."""
    return request.param == "async"


def prompt(first: int, length: int) -> list[int]:
    return [first + place for place in range(length)]


def named(step: Step) -> list[int]:
    assert step.blocks is not None
    return [name for told in step.blocks.prompts for name in unpacked(told.hashes)]


def gone(step: Step) -> set[int]:
    moved = step.blocks.moved if step.blocks is not None else []
    assert all(each.tier == WARM_L1 and not each.is_there for each in moved)
    return {name for each in moved for name in unpacked(each.hashes)}


def cached_in_pool(core: Core, names: list[int]) -> set[int]:
    """Return which of these blocks vLLM would find."""
    cache = core.scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block._cache
    # A key of the cache is a block's hash and the number of its group.
    present = {name_of(key[:-4]) for key in cache}
    return present & set(names)


def test_a_prompts_blocks_are_told_when_it_is_computed(model, is_async):
    core = Core(model, is_async=is_async)
    core.add("a", prompt(0, 100))

    first, second, third = core.step(), core.step(), core.step()

    assert first.blocks is None
    assert third.blocks is None
    assert second.blocks is not None
    (told,) = second.blocks.prompts
    assert ("a", 100, BLOCK) == (told.ref, told.tokens, told.every)
    assert 6 == len(named(second)) == len(cached_in_pool(core, named(second)))


def test_a_common_beginning_has_the_same_names(model, is_async):
    core = Core(model, is_async=is_async)
    core.add("a", prompt(0, 60))
    one = named(core.step())
    core.add("b", [*prompt(0, 32), *prompt(500, 28)])

    other = named(core.step())

    assert one[:2] == other[:2]
    assert not set(one[2:]) & set(other[2:])


def test_blocks_that_are_taken_for_others_are_told(model, is_async):
    core = Core(model, is_async=is_async, blocks=9)
    core.add("a", prompt(0, 60), tokens=1)
    old = named(core.step())
    core.step()
    told: set[int] = set()
    for number in range(1, 6):
        core.add(f"b{number}", prompt(100 * number, 60), tokens=1)
        told |= gone(core.step())

    assert set(old) <= told
    assert not cached_in_pool(core, old)


def test_a_book_never_has_what_the_pool_has_not(model, is_async):
    """Any history: what is told as held is what vLLM would find, and nothing is missing that was told."""
    core = Core(model, is_async=is_async, blocks=24)
    book = PieceBook(1000)
    blocks = BlockMap(book)
    names: list[int] = []
    prompts = [
        [*prompt(10 * (number % 3), 64), *prompt(50 * number, 16 * (number % 5) + 80)]
        for number in range(40)
    ]
    for number, ids in enumerate(prompts):
        core.add(f"r{number}", ids, tokens=1 + number % 4)
        chain = chain_of(TokensPrompt(token_ids=ids), 1)
        for _ in range(8):
            step = core.step()
            if step.blocks is not None:
                blocks.apply(step.blocks)
                names += named(step)
                for told in step.blocks.prompts:
                    blocks.prompt(chain, told)
        held = {blocks._block_of[piece] for piece in book._tiers}
        assert held <= cached_in_pool(core, names)
    assert len(book) > 0


def test_a_cleared_pool_is_told(model, is_async):
    core = Core(model, is_async=is_async)
    core.add("a", prompt(0, 60), tokens=1)
    core.step()
    core.step()
    assert core.scheduler.reset_prefix_cache()
    core.add("b", prompt(200, 60), tokens=1)

    step = core.step()

    assert step.blocks is not None
    assert step.blocks.is_cleared
    assert 3 == len(named(step))


def test_a_connectors_tiers_are_told(model, is_async):
    core = Core(model, is_async=is_async, connects=True)
    hashes = [bytes([7]) * 32, bytes([8]) * 32]

    def stored(medium: str) -> BlockStored:
        return BlockStored(
            block_hashes=hashes,
            parent_block_hash=None,
            token_ids=[],
            block_size=0,
            lora_id=None,
            medium=medium,
            lora_name=None,
        )

    core.scheduler.connector.events = [
        stored(MEDIUM_CPU),
        stored(MEDIUM_STORAGE),
        BlockRemoved(block_hashes=hashes[:1], medium=MEDIUM_CPU),
        BlockRemoved(block_hashes=hashes, medium="TAPE"),
    ]
    core.add("a", prompt(0, 40))
    core.begin()
    step = core.step(loaded=["a"])

    assert step.blocks is not None
    names = tuple(name_of(each) for each in hashes)
    assert [(WARM_L2, True, names), (WARM_L3, True, names), (WARM_L2, False, names[:1])] == [
        (each.tier, each.is_there, unpacked(each.hashes)) for each in step.blocks.moved
    ]


def test_a_configured_publisher_still_gets_everything():
    class Kept(EventPublisher):
        def __init__(self) -> None:
            super().__init__()
            self.batches: list[EventBatch] = []
            self.is_over = False

        def publish(self, events: EventBatch) -> None:
            self.batches.append(events)

        def shutdown(self) -> None:
            self.is_over = True

    kept = Kept()
    tee = EventTee(kept)
    batch = EventBatch(ts=0.0, events=[BlockRemoved(block_hashes=[5], medium=None)])

    tee.publish(batch)
    tee.shutdown()

    assert [batch] == kept.batches
    assert kept.is_over
    news = tee.put_into(None)
    assert news is not None
    assert (5,) == unpacked(news.moved[0].hashes)
    assert tee.put_into(None) is None


def test_numbers_and_bytes_name_the_same_block():
    whole = bytes(range(32))

    assert name_of(whole) == name_of(int.from_bytes(whole, "big") & (1 << 64) - 1)
