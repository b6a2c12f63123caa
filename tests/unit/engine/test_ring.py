"""What the ring returns is what was put in, without a hole, within its bounds; what is gone is said to be gone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.engine.ring import RingStore, StreamRing
from services.engine.settings import RingSettings
from shared.ids import StreamNo
from shared.messages import Delta, DeltaExtra, Finish, TokenLogprob, Usage

EVERYTHING = 1 << 30


def delta(seq: int, text: str = "word ") -> Delta:
    return Delta(StreamNo(7), seq, 0, text, [seq])


def test_returns_deltas_from_a_number_on_as_they_were():
    ring = StreamRing()
    logprobs = [TokenLogprob(token="é", logprob=-0.5, token_bytes="é".encode(), top=[])]
    deltas = [
        delta(0),
        Delta(StreamNo(7), 1, 1, "🙂", [1, 2], None, DeltaExtra(logprobs=logprobs)),
        Delta(
            StreamNo(7), 2, 0, "", [], Finish.STOP,
            DeltaExtra(usage=Usage(prompt_tokens=1, completion_tokens=2)),
        ),
    ]  # fmt: skip
    for each in deltas:
        ring.append(each)

    assert deltas == ring.since(0, max_bytes=EVERYTHING)
    assert deltas[2:] == ring.since(2, max_bytes=EVERYTHING)
    assert ring.since(3, max_bytes=EVERYTHING) == []
    assert ring.since(99, max_bytes=EVERYTHING) == []


def test_an_answer_is_cut_to_what_one_message_takes():
    ring = StreamRing()
    for seq in range(10):
        ring.append(delta(seq, "x" * 100))

    assert len(ring.since(0, max_bytes=ring.size // 10 * 4) or []) == 4
    assert len(ring.since(0, max_bytes=1) or []) == 1


def test_what_was_evicted_is_gone():
    ring = StreamRing()
    for seq in range(100):
        ring.append(delta(seq))

    ring.drop_older_half()

    assert 0 < ring.first_seq < 100
    assert ring.since(ring.first_seq - 1, max_bytes=EVERYTHING) is None
    assert [d.seq for d in ring.since(ring.first_seq, max_bytes=EVERYTHING) or []] == list(
        range(ring.first_seq, 100)
    )


def test_finished_streams_go_by_age():
    store = RingStore(RingSettings(finished_s=30.0))
    ring = StreamRing()
    store.append(ring, delta(0))

    store.finish("a", ring, now=0.0)
    store.forget_old(30.0)
    assert store.finished("a") is ring
    store.forget_old(30.1)

    assert store.finished("a") is None
    assert store.total_bytes == 0


def test_the_oldest_finished_stream_makes_room():
    store = RingStore(RingSettings(stream_bytes=1 << 20, total_bytes=2_000))
    rings = [StreamRing() for _ in range(3)]
    for key, ring in zip("ab", rings, strict=False):
        store.append(ring, delta(0, "x" * 800))
        store.finish(key, ring, now=0.0)

    store.append(rings[2], delta(0, "x" * 800))

    assert store.finished("a") is None
    assert store.finished("b") is rings[1]
    assert store.total_bytes <= 2_000


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 4), st.integers(0, 900)),
        st.tuples(st.just("finish"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("wait"), st.just(0), st.integers(0, 20)),
    ),
    max_size=120,
)


@given(STEPS)
def test_bounds_hold_and_no_ring_has_a_hole(steps):
    store = RingStore(RingSettings(stream_bytes=2_000, total_bytes=5_000, finished_s=30.0))
    live = {key: StreamRing() for key in range(5)}
    kept: dict[str, StreamRing] = {}
    now, lives = 0.0, 0
    for act, key, amount in steps:
        ring = live[key]
        if act == "append":
            store.append(ring, delta(ring.next_seq, "x" * amount))
        elif act == "finish":
            kept[f"{key}.{lives}"] = ring
            store.finish(f"{key}.{lives}", ring, now=now)
            live[key] = StreamRing()
            lives += 1
        elif act == "drop":
            store.drop(ring)
            live[key] = StreamRing()
        else:
            now += amount
            store.forget_old(now)

        finished = [ring for name in kept if (ring := store.finished(name)) is not None]
        assert store.total_bytes == sum(ring.size for ring in [*live.values(), *finished])
        assert store.total_bytes <= 5_000
        for each in [*live.values(), *finished]:
            assert each.size <= 2_000
            seqs = [d.seq for d in each.since(each.first_seq, max_bytes=EVERYTHING) or []]
            assert seqs == list(range(each.first_seq, each.next_seq))
