"""The gateway's view of prefixes: right once it has heard everything, in any order, and never the reason to wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.warmth import (
    ASK_AGAIN_BEATS,
    MAX_EARLY,
    MAX_STORES,
    NOTHING,
    Found,
    WarmthView,
)
from shared.ids import EngineId, ServiceName
from shared.messages import WARM_L1, WARM_L2, WARM_L3, Warmth, WarmthWhole
from shared.prefixes import chain_of_text, packed, unpacked

A, B, C = EngineId("ea"), EngineId("eb"), EngineId("ec")
CHAIN = chain_of_text(b"0123456789" * 400, seed=1)
PIECES = unpacked(CHAIN.hashes)


def news(seq: int, tiers: dict[int, int], engine=A, **fields) -> Warmth:
    return Warmth(
        service=ServiceName("m"),
        engine=engine,
        seq=seq,
        hashes=packed(list(tiers)),
        tiers=bytes(tiers.values()),
        **fields,
    )


def whole(seq: int, tiers: dict[int, int], engine=A, **fields) -> WarmthWhole:
    return WarmthWhole(
        engine=engine,
        seq=seq,
        hashes=packed(list(tiers)),
        tiers=bytes(tiers.values()),
        **fields,
    )


def view_of(*engines: EngineId) -> WarmthView:
    view = WarmthView()
    for engine in engines or (A,):
        assert not view.beat(engine, 0)
    return view


def found(view: WarmthView, engine=A) -> Found:
    return view.found(engine, CHAIN, PIECES)


def all_in(tier: int, count: int = len(PIECES)) -> dict[int, int]:
    return dict.fromkeys(PIECES[:count], tier)


def test_what_is_not_known_is_cold():
    view = WarmthView()
    view.hear(news(1, all_in(WARM_L1)))

    assert NOTHING == found(view)
    assert NOTHING == view_of().found(A, chain_of_text(b"", seed=1), ())


def test_a_prefix_counts_up_to_the_first_piece_that_is_missing():
    view = view_of()
    view.hear(news(1, all_in(WARM_L1)))
    view.hear(news(2, {PIECES[3]: 0}))

    assert Found(3 * 256, 0, 0) == found(view)


def test_each_byte_counts_for_the_nearest_tier():
    view = view_of()
    tiers = [WARM_L1 | WARM_L3, WARM_L1, WARM_L2 | WARM_L3, WARM_L3, WARM_L1]
    view.hear(news(1, dict(zip(PIECES, tiers, strict=False)), store="s"))

    assert Found(3 * 256, 256, 256) == found(view)


def test_l3_is_shared_by_the_engines_of_a_store_and_outlives_them():
    view = view_of(A, B)
    view.hear(news(1, all_in(WARM_L1 | WARM_L3), store="s"))
    view.hear(news(1, {7: WARM_L1}, engine=B, store="s"))
    assert Found(0, 0, len(PIECES) * 256) == found(view, B)

    view.forget(A)
    assert Found(0, 0, len(PIECES) * 256) == found(view, B)

    view.forget(B)
    assert NOTHING == found(view, B)
    assert not view.beat(C, 0)
    view.hear(news(1, {}, engine=C, store="s"))
    assert Found(0, 0, len(PIECES) * 256) == found(view, C)


def test_stores_that_nobody_reads_from_are_remembered_up_to_a_bound():
    view = WarmthView()
    for number in range(3 * MAX_STORES):
        engine = EngineId(f"e{number}")
        view.beat(engine, 0)
        view.hear(news(1, {number: WARM_L3}, engine=engine, store=f"s{number}"))
        view.forget(engine)

    assert MAX_STORES == len(view._stores)
    assert f"s{3 * MAX_STORES - 1}" in view._stores


def test_an_engine_that_names_ever_new_stores_is_held_to_the_same_bound():
    view = view_of(A)
    for number in range(1, 4 * MAX_STORES):
        view.hear(news(number, {PIECES[0]: WARM_L3}, store=f"store-{number}"))

    assert len(view._stores) <= MAX_STORES + 1


def test_what_is_dropped_from_a_store_is_dropped_for_all():
    view = view_of(A, B)
    view.hear(news(1, all_in(WARM_L3), store="s"))
    view.hear(news(1, {7: WARM_L1}, engine=B, store="s"))

    view.hear(news(2, {PIECES[0]: 0}, store="s"))

    assert NOTHING == found(view, B)


def test_a_gap_is_asked_for_at_the_second_beat_that_shows_it():
    view = view_of()
    view.hear(news(1, all_in(WARM_L1)))

    assert not view.beat(A, 2)  # the news may be right behind the beat
    assert view.beat(A, 2)
    assert [False] * ASK_AGAIN_BEATS == [view.beat(A, 2) for _ in range(ASK_AGAIN_BEATS)]
    assert view.beat(A, 2)  # no answer came
    view.take(whole(2, all_in(WARM_L2)))
    assert not view.beat(A, 2)
    assert Found(0, len(PIECES) * 256, 0) == found(view)


def test_a_new_gateway_asks_at_once():
    assert WarmthView().beat(A, 17)


def test_news_that_overtook_others_wait_for_them_and_for_the_whole():
    view = view_of()
    view.hear(news(3, {PIECES[2]: 0}))
    assert NOTHING == found(view)

    view.take(whole(2, all_in(WARM_L1)))

    assert Found(2 * 256) == found(view)


def test_an_old_whole_changes_nothing():
    view = view_of()
    view.hear(news(1, all_in(WARM_L1)))
    view.hear(news(2, {PIECES[1]: 0}))

    view.take(whole(1, all_in(WARM_L1)))

    assert Found(256) == found(view)


def test_too_many_early_news_are_left_out_and_asked_for():
    view = view_of()
    for seq in range(2, 3 * MAX_EARLY):
        view.hear(news(seq, {seq: WARM_L1}))

    assert len(view._engines[A].early) == MAX_EARLY
    view.beat(A, 200)
    assert view.beat(A, 200)


def test_messages_that_are_cut_short_break_nothing():
    view = view_of()
    view.hear(
        Warmth(service=ServiceName("m"), engine=A, seq=1, hashes=packed(PIECES)[:19], tiers=b"\1")
    )

    assert Found(256) == found(view)


changes = st.dictionaries(st.sampled_from(PIECES), st.integers(0, 7), max_size=6)


@given(st.lists(changes, min_size=1, max_size=12), st.data())
def test_any_order_of_news_with_doubles_ends_the_same(steps, data):
    """And a whole at any moment, of any moment."""
    messages: list[Warmth | WarmthWhole] = []
    state: dict[int, int] = {}
    for seq, step in enumerate(steps, 1):
        messages.append(news(seq, step))
        state = {piece: tiers for piece, tiers in (state | step).items() if tiers}
        if data.draw(st.booleans()):
            messages.append(whole(seq, state))
    order = data.draw(st.permutations(messages)) + data.draw(st.lists(st.sampled_from(messages)))
    view = view_of()

    for message in order:
        if isinstance(message, Warmth):
            view.hear(message)
        else:
            view.take(message)

    holding = view._engines[A]
    assert (len(steps), state, {}) == (holding.seq, holding.pieces, holding.early)
