"""Who waits for what: orphans for a ledger, lost requests for a black box, none of them for long."""

from __future__ import annotations

from services.tracer.holding import GATEWAY_LOST, HOLD_S, MAX_BOXES, MAX_HELD, Holding, Item
from shared.ids import EngineId, GatewayId, RequestId
from shared.messages import (
    STAGES,
    Attempt,
    BlackBox,
    Orphan,
    Outcome,
    Spent,
    Stage,
    StageBatch,
    StepSummary,
)
from tests.support.traced_ledgers import ENGINE, GATEWAY, SERVICE, ledger

SPENT = Spent(
    received_at=100.0,
    until=101.5,
    us=[1_000, 99_000, 0, 400_000, 900_000, 100_000, 0, 0],
    cached_tokens=10,
    prefill_tokens=90,
    decode_tokens=7,
)
TRACE_PARENT = "00-000102030405060708090a0b0c0d0e0f-0001020304050607-01"
DEAD = EngineId("e-dead")


def orphans(*requests: str, trace: dict[str, str] | None = None) -> StageBatch:
    return StageBatch(
        service=SERVICE,
        engine=ENGINE,
        at=102.0,
        unix_s=5_000.0,
        moves=[],
        steps=StepSummary(),
        orphans=[
            Orphan(request=RequestId(request), trace=trace or {}, spent=SPENT)
            for request in requests
        ],
    )


def item(request: str = "r", *lost: EngineId) -> Item:
    attempts = [Attempt(engine=engine, why="is gone", us=1) for engine in lost]
    return Item(SERVICE, GATEWAY, ledger(request=RequestId(request), attempts=attempts))


def box(engine: EngineId) -> BlackBox:
    return BlackBox(engine=engine, service=SERVICE, path="p", host="h", cause="c")


def due(holding: Holding, now: float) -> list[str]:
    return [held.ledger.request for held in holding.due(now)]


def test_an_orphan_becomes_a_failed_ledger_of_what_the_engine_knows():
    holding = Holding()
    holding.orphans(orphans("r", trace={"traceparent": TRACE_PARENT, "tracestate": "a=b"}), now=1.0)

    assert [] == list(holding.due(1.0 + HOLD_S - 0.1))
    (held,) = holding.due(1.0 + HOLD_S)

    made = held.ledger
    assert (SERVICE, GatewayId(""), ENGINE) == (held.service, held.gateway, made.engine)
    assert (Outcome.FAILED, GATEWAY_LOST) == (made.outcome, made.code)
    assert len(STAGES) == len(made.us)
    assert 1_500_000 == made.wall_us == sum(made.us)
    assert 400_000 == made.us[STAGES.index(Stage.PREFILL)]
    assert 4_998_000_000 == made.began_unix_us
    assert (bytes(range(16)), bytes(range(8)), 1, "a=b") == (
        made.trace_id,
        made.span_id,
        made.trace_flags,
        made.trace_state,
    )
    assert (100, 7, True) == (made.prompt_tokens, made.completion_tokens, made.is_estimated)
    assert 0 == len(holding)


def test_an_orphan_without_a_legible_trace_gets_its_own():
    holding = Holding()
    holding.orphans(orphans("a", trace={"traceparent": "00-zz-1-1"}), now=0.0)
    holding.orphans(orphans("b", trace={"traceparent": ""}), now=0.0)

    assert [b"", b""] == [held.ledger.trace_id for held in holding.due(HOLD_S)]


def test_a_ledger_that_comes_after_all_replaces_the_orphan():
    holding = Holding()
    holding.orphans(orphans("a", "b"), now=0.0)

    assert not holding.ledger(item("a"), now=1.0)

    assert ["b"] == due(holding, 9.0)


def test_a_lost_request_waits_for_the_black_box_of_each_engine():
    holding = Holding()
    other = EngineId("e-other")

    assert holding.ledger(item("r", DEAD, other), now=0.0)
    holding.box(box(DEAD))
    assert [] == due(holding, 0.5)
    holding.box(box(other))
    assert ["r"] == due(holding, 0.6)
    assert {DEAD, other} == holding.boxes.keys()
    assert not holding.ledger(item("s", DEAD), now=0.7)


def test_a_lost_request_does_not_wait_for_ever():
    holding = Holding()
    holding.ledger(item("r", DEAD), now=0.0)

    assert [] == due(holding, HOLD_S - 0.1)
    assert ["r"] == due(holding, HOLD_S)


def test_at_the_end_nothing_stays():
    holding = Holding()
    holding.ledger(item("r", DEAD), now=0.0)
    holding.orphans(orphans("o"), now=0.0)

    assert {"r", "o"} == {held.ledger.request for held in holding.due(0.0, all_of_them=True)}
    assert 0 == len(holding)


def test_the_oldest_goes_first_where_too_many_wait():
    holding = Holding()
    for n in range(MAX_HELD + 1):
        holding.ledger(item(f"r{n}", DEAD), now=0.0)

    assert ["r0"] == due(holding, 0.1)
    for n in range(MAX_BOXES + 1):
        holding.box(box(EngineId(f"e{n}")))
    assert MAX_BOXES == len(holding.boxes)
    assert EngineId("e0") not in holding.boxes
