"""What of a pool is kept for whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.reserve_plan import Plan, ReserveSettings, plan_of


def plan(total: int, *, context_blocks: int = 64, **settings) -> Plan:
    return plan_of(
        ReserveSettings(**settings),
        total=total,
        context_blocks=context_blocks,
        context_tokens=128 * context_blocks,
    )


@pytest.mark.parametrize(
    ("total", "short", "interactive", "default"),
    [
        (64, 0, 0, 0),
        (65, 1, 1, 0),
        (80, 16, 10, 5),
        (256, 64, 32, 16),
        (100_000, 25_000, 12_500, 6_250),
    ],
)
def test_what_is_kept_follows_the_pool(total, short, interactive, default):
    found = plan(total)

    assert (short, interactive, default) == (
        found.short_blocks,
        found.interactive_blocks,
        found.default_blocks,
    )
    assert 1024 == found.short_tokens


def test_what_is_set_counts():
    found = plan(
        256, short_tokens=99, short_blocks=7, interactive_blocks=5, default_blocks=0, batch_wait_s=9
    )

    assert (99, 7, 5, 0) == (
        found.short_tokens,
        found.short_blocks,
        found.interactive_blocks,
        found.default_blocks,
    )
    assert (5.0, 15.0, 9.0) == found.waits_s


blocks = st.integers(0, 2000)


@given(
    st.integers(1, 2000),
    st.integers(1, 500),
    st.none() | blocks,
    st.none() | blocks,
    st.none() | blocks,
)
def test_a_whole_context_always_fits_beside_what_is_kept(spare, context, short, inter, default):
    found = plan(
        context + spare - 1,
        context_blocks=context,
        short_blocks=short,
        interactive_blocks=inter,
        default_blocks=default,
    )

    assert context <= found.total - found.short_blocks
    assert context <= found.total - found.interactive_blocks - found.default_blocks
