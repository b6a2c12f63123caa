"""Blocks of long contexts go to disk, and those of prefixes that came twice; what is remembered for it is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.engine.kv.admission import Admission, Interest
from services.engine.kv.seen import Seen

HASH_TOKENS = 16


def look(admission: Admission, hashes: list[bytes], *, tail: int = 3) -> Interest:
    return admission.look(len(hashes) * HASH_TOKENS + tail, hashes, tokens_per_hash=HASH_TOKENS)


def prompt(*names: str) -> list[bytes]:
    """Chained as vLLM's are: a block's hash stands for all before it."""
    return ["/".join(names[: place + 1]).encode() for place in range(len(names))]


def test_with_no_threshold_everything_is_admitted_at_once():
    admission = Admission(0, seen_blocks=0)

    assert admission.admits(look(admission, prompt("a")), 16)


def test_a_context_longer_than_the_threshold_is_admitted_from_its_first_block_on():
    admission = Admission(64, seen_blocks=8)

    exact = admission.look(64, prompt(*"abcd"), tokens_per_hash=HASH_TOKENS)
    longer = admission.look(65, prompt(*"efgh"), tokens_per_hash=HASH_TOKENS)

    assert not admission.admits(exact, 16)
    assert admission.admits(longer, 16)


def test_generated_tokens_may_carry_a_context_over_the_threshold():
    admission = Admission(64, seen_blocks=8)
    interest = look(admission, prompt("a"))

    assert not admission.admits(interest, 64)
    assert admission.admits(interest, 80)


def test_a_prefix_that_comes_twice_is_admitted_as_far_as_it_is_the_same():
    admission = Admission(1000, seen_blocks=64)
    first = look(admission, prompt("a", "b", "c"))
    second = look(admission, prompt("a", "b", "x"))

    assert not admission.admits(first, 16)
    assert admission.admits(second, 32)
    assert not admission.admits(second, 48)


def test_without_memory_nothing_counts_as_seen():
    admission = Admission(1000, seen_blocks=0)
    look(admission, prompt("a"))

    assert 0 == look(admission, prompt("a")).seen_tokens


@given(st.lists(st.integers(0, 40)), st.integers(0, 20))
def test_what_is_said_to_be_seen_was_seen_and_the_latest_half_is_never_forgotten(things, bound):
    seen: Seen[int] = Seen(bound)
    before: list[int] = []
    for each in things:
        was_seen = seen.note(each)
        assert not was_seen or each in before
        recent = list(dict.fromkeys(reversed(before)))[: bound // 2]
        assert was_seen or each not in recent
        before.append(each)
        assert len(seen) <= bound + 1
