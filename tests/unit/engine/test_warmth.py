"""What an engine tells of prefixes: never more than it holds, bounded, and each change once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.engine.warmth.blocks import MAX_NAMED, BlockNews, Moved, PromptBlocks, prompt_blocks
from services.engine.warmth.guess import GuessPool
from services.engine.warmth.map import BlockMap
from services.engine.warmth.pieces import PieceBook
from shared.messages import WARM_L1, WARM_L2, WARM_L3, Chain
from shared.prefixes import chain_of_text, ends_of, packed, unpacked

BLOCK = 16
TEXT = b"the quick brown fox jumps over the lazy dog " * 60


def chain(text: bytes = TEXT) -> Chain:
    return chain_of_text(text, seed=1)


def blocks_of(text: bytes, *, first: int = 100) -> PromptBlocks:
    """Return the blocks of a text with four bytes a token; equal beginnings have equal blocks where `first` is equal."""
    tokens = len(text) // 4
    told = prompt_blocks(
        "r", tokens=tokens, block_tokens=BLOCK, hashes=[first + n for n in range(tokens // BLOCK)]
    )
    assert told is not None
    return told


def read(told: tuple[bytes, bytes]) -> dict[int, int]:
    hashes, tiers = told
    return dict(zip(unpacked(hashes), tiers, strict=True))


def desk(max_pieces: int = 1000, **options) -> tuple[PieceBook, BlockMap]:
    book = PieceBook(max_pieces)
    return book, BlockMap(book, **options)


def moved(tier: int, is_there: bool, *blocks: int) -> BlockNews:
    return BlockNews(moved=[Moved(tier, is_there, packed(blocks))])


def test_all_pieces_of_a_computed_prompt_are_told_once():
    book, blocks = desk()

    blocks.prompt(chain(), blocks_of(TEXT))

    assert dict.fromkeys(unpacked(chain().hashes), WARM_L1) == read(book.news(100))
    assert not book.has_news
    assert {} == read(book.news(100))


def test_pieces_go_with_the_block_that_they_end_in():
    book, blocks = desk()
    blocks.prompt(chain(), blocks_of(TEXT))
    pieces = unpacked(chain().hashes)

    blocks.apply(moved(WARM_L1, False, *range(100 + 16, 100 + 100)))

    # Four blocks a piece: the first 16 hold four pieces.
    assert set(pieces[:4]) == {piece for piece in pieces if book.tiers(piece)}


def test_a_block_that_comes_back_brings_its_pieces_with_the_next_prompt():
    book, blocks = desk()
    blocks.prompt(chain(), blocks_of(TEXT))
    blocks.apply(moved(WARM_L1, False, *range(100, 200)))
    assert 0 == len(book)

    blocks.prompt(chain(), blocks_of(TEXT))

    assert len(unpacked(chain().hashes)) == len(book)


@pytest.mark.parametrize("tier", [WARM_L2, WARM_L3])
def test_lower_tiers_keep_what_the_pool_loses(tier):
    book, blocks = desk()
    blocks.apply(moved(tier, True, *range(100, 120)))
    blocks.prompt(chain(), blocks_of(TEXT))
    pieces = unpacked(chain().hashes)
    assert WARM_L1 | tier == book.tiers(pieces[0])
    assert WARM_L1 == book.tiers(pieces[-1])

    blocks.apply(BlockNews(is_cleared=True))

    assert tier == book.tiers(pieces[0])
    assert 0 == book.tiers(pieces[-1])
    blocks.apply(moved(tier, False, 103))
    assert 0 == book.tiers(pieces[0])


def test_blocks_that_reach_a_lower_tier_later_are_told_too():
    book, blocks = desk()
    blocks.prompt(chain(), blocks_of(TEXT))
    book.news(100)

    blocks.apply(moved(WARM_L3, True, *range(100, 200)))

    assert {WARM_L1 | WARM_L3} == set(read(book.news(100)).values())


def test_a_change_that_was_undone_is_no_news():
    book, blocks = desk()
    blocks.prompt(chain(), blocks_of(TEXT))
    blocks.apply(moved(WARM_L1, False, *range(100, 200)))

    assert not book.has_news


def test_news_beyond_the_bound_wait():
    book, blocks = desk()
    blocks.prompt(chain(), blocks_of(TEXT))
    count = len(book)

    first = read(book.news(3))
    whole = read(book.whole())
    rest = read(book.news(100))

    assert first == whole
    assert 3 == len(first)
    assert count - 3 == len(rest)


def test_of_a_long_prompt_some_blocks_are_named_and_pieces_follow_them():
    text = bytes(4 * BLOCK * (3 * MAX_NAMED + 5))
    told = blocks_of(text)
    book, blocks = desk()

    blocks.prompt(chain(text), told)

    assert len(told.hashes) // 8 <= MAX_NAMED
    assert told.every > BLOCK
    assert len(unpacked(chain(text).hashes)) == len(book)
    named, pieces = unpacked(told.hashes), unpacked(chain(text).hashes)
    blocks.apply(moved(WARM_L1, False, *named[len(named) // 2 :]))
    ends = ends_of(chain(text), len(pieces))
    left = max(end for piece, end in zip(pieces, ends, strict=True) if book.tiers(piece))
    assert len(text) * 0.48 < left <= len(text) * 0.5


def test_a_prompt_without_a_full_block_or_piece_tells_nothing():
    book, blocks = desk()

    assert prompt_blocks("r", tokens=5, block_tokens=16, hashes=[]) is None
    blocks.prompt(chain(b"short"), PromptBlocks("r", 1, 16, packed([1])))
    blocks.prompt(chain(), PromptBlocks("r", 500, 16, b""))

    assert 0 == len(book)


def test_a_common_beginning_stays_while_one_of_its_prompts_is_there():
    book, blocks = desk()
    other = TEXT[:1024] + b"x" * 2000
    blocks.prompt(chain(), blocks_of(TEXT))
    told = blocks_of(other)
    own = [*unpacked(blocks_of(TEXT).hashes)[:16], *range(900, 900 + len(other) // 64 - 16)]
    blocks.prompt(chain(other), PromptBlocks("r", told.tokens, BLOCK, packed(own)))

    blocks.apply(moved(WARM_L1, False, *range(116, 300)))

    held = {piece for piece in unpacked(chain(other).hashes) if book.tiers(piece)}
    assert set(unpacked(chain(other).hashes)) == held
    assert set(unpacked(chain().hashes)[:4]) <= held


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(300, 3000)), max_size=40))
def test_a_guess_never_exceeds_the_pool(prompts):
    book = PieceBook(1000)
    guess = GuessPool(book, pool_tokens=1500)
    for kind, size in prompts:
        guess.prompt(chain(bytes([kind]) * size), size // 4)

        assert guess._tokens <= 1500 + 1e-6
        assert len(book) == len(guess._tokens_of)
    if prompts and prompts[-1][1] // 4 <= 1500:
        kind, size = prompts[-1]
        assert all(book.tiers(piece) for piece in unpacked(chain(bytes([kind]) * size).hashes))


class Held(RuleBasedStateMachine):
    """A reader that hears all news has what the book has, and the book has nothing whose block is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.book, self.blocks = desk(40, max_lower=16)
        self.heard: dict[int, int] = {}
        self.pool: set[int] = set()

    @rule(kind=st.integers(0, 3), size=st.integers(64, 4000))
    def prompt(self, kind: int, size: int) -> None:
        text = bytes([kind]) * size
        told = blocks_of(text, first=1000 * kind)
        self.pool |= set(unpacked(told.hashes))
        self.blocks.prompt(chain(text), told)

    @rule(tier=st.sampled_from([WARM_L2, WARM_L3]), there=st.booleans(), data=st.data())
    def move(self, tier: int, there: bool, data) -> None:
        first = data.draw(st.integers(0, 3))
        last = data.draw(st.integers(0, 60))
        self.blocks.apply(moved(tier, there, *range(1000 * first, 1000 * first + last)))

    @rule(data=st.data())
    def evict(self, data) -> None:
        if self.pool:
            gone = data.draw(st.sets(st.sampled_from(sorted(self.pool))))
            self.pool -= gone
            self.blocks.apply(moved(WARM_L1, False, *gone))

    @rule()
    def clear(self) -> None:
        self.pool.clear()
        self.blocks.apply(BlockNews(is_cleared=True))

    @rule(most=st.integers(1, 30))
    def tell(self, most: int) -> None:
        for piece, tiers in read(self.book.news(most)).items():
            if tiers:
                self.heard[piece] = tiers
            else:
                del self.heard[piece]

    @invariant()
    def a_reader_of_all_news_has_the_whole(self) -> None:
        assert self.heard == read(self.book.whole())

    @invariant()
    def nothing_is_warm_whose_block_is_gone(self) -> None:
        for piece, tiers in self.book._tiers.items():
            if tiers & WARM_L1:
                assert self.blocks._block_of[piece] in self.pool

    @invariant()
    def all_is_bounded(self) -> None:
        assert len(self.book) <= 40
        assert len(self.blocks._block_of) == len(self.book)
        assert len(self.blocks._lower) <= 16
        tied = [piece for at in self.blocks._pieces_at.values() for piece in at]
        assert sorted(tied) == sorted(self.blocks._block_of)


Held.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestHeld = Held.TestCase
