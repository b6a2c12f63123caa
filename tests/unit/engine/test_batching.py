"""One message a gateway and tick, in order, below the bound, nothing lost and nothing twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.engine.batching import Outbox
from shared.ids import EngineId, GatewayId, StreamNo
from shared.messages import Delta

E = EngineId("e1")


def delta(seq: int) -> Delta:
    return Delta(StreamNo(1), seq, 0, "x", [1])


def test_one_message_for_each_gateway():
    outbox = Outbox(E, max_bytes=1000, on_first=list)
    for seq in range(4):
        outbox.add(GatewayId(f"g{seq % 2}"), delta(seq), 10)

    batches = outbox.take()

    assert [("g0", [0, 2]), ("g1", [1, 3])] == [
        (batch.gateway, [d.seq for d in batch.deltas]) for batch in batches
    ]
    assert outbox.take() == []


def test_only_the_first_delta_asks_for_a_flush():
    asked = []
    outbox = Outbox(E, max_bytes=15, on_first=lambda: asked.append(len(asked)))

    for gateway, seq in (("g", 0), ("g", 1), ("h", 2)):
        outbox.add(GatewayId(gateway), delta(seq), 10)
    assert asked == [0]
    outbox.take()
    outbox.add(GatewayId("g"), delta(3), 10)

    assert asked == [0, 1]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 150)), max_size=60))
def test_every_delta_arrives_once_in_order_and_within_the_bound(added):
    outbox = Outbox(E, max_bytes=100, on_first=list)
    sizes = {}
    for seq, (gateway, size) in enumerate(added):
        outbox.add(GatewayId(gateway), delta(seq), size)
        sizes[seq] = size

    batches = outbox.take()

    for gateway in "abc":
        got = [d.seq for batch in batches if batch.gateway == gateway for d in batch.deltas]
        assert got == [seq for seq, (name, _) in enumerate(added) if name == gateway]
    for batch in batches:
        assert len(batch.deltas) == 1 or sum(sizes[d.seq] for d in batch.deltas) <= 100
