"""Records, entries and the shelf they wait on: each request once, bounded, and each figure in its own field."""

from __future__ import annotations

import msgspec
import pytest

from services.gateway.admission.verdict import Ticket
from services.gateway.call import ApiError, Call
from services.gateway.ledger.book import MAX_BATCH, MAX_WAITING, LedgerBook, Record
from services.gateway.ledger.entry import MAX_ATTEMPTS, MAX_CHOICES
from services.gateway.ledger.stamps import Stay
from services.gateway.ledger.trace import continue_trace
from services.gateway.outlet import Caller
from services.gateway.running import Part, RunningCall
from shared.codec import encode
from shared.ids import EngineId, GatewayId, RequestId, ServiceName, StreamNo, TenantId
from shared.messages import (
    STAGES,
    UNKNOWN_SERVICE,
    Attempt,
    Blocker,
    ChoiceRecord,
    Delta,
    EngineHeartbeat,
    EngineState,
    Finish,
    Ledger,
    Outcome,
    Priority,
    Sampling,
    Spent,
    TextPrompt,
    Usage,
)
from tests.support.gateway_world import Recorder

G = GatewayId("g0123456789abcdef")
E = EngineId("e0123456789abcdef")
M = ServiceName("m")
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Book:
    """A book on a clock that the test sets; wall time is 1,000 s ahead of it."""

    def __init__(self) -> None:
        self.now = 10.0
        self.book = LedgerBook({M}, stamp=lambda: self.now, wall_time_s=lambda: self.now + 1000)

    def caller(self, **fields) -> Caller:
        trace = continue_trace(PARENT, "a=1", random_bits=5)
        defaults = {"request": RequestId("cmpl-1"), "door": "http", "kind": "completion"}
        return Caller(**(defaults | {"received_at": 10.0, "trace": trace} | fields))

    def refused(self, model: str = "m", error: ApiError | None = None) -> Record:
        return self.book.refused(self.caller(), error, model=model)

    def entries(self) -> list[Ledger]:
        return [entry for batch in self.book.batches(G) for entry in batch.ledgers]


def running(caller: Caller, *, prompts: int = 1, n: int = 1) -> RunningCall:
    """Return a call that was let in."""
    call = Call(
        kind="completion",
        model=M,
        prompts=(TextPrompt(text="hello"),) * prompts,
        sampling=Sampling(max_tokens=64, n=n),
        stream=True,
        timeout_s=30.0,
    )
    made = RunningCall(
        call, caller, Recorder(), ticket=Ticket(1), priority=Priority.BATCH, deadline=40.0
    )
    made.offered_at, made.admitted_at, made.first_at = 10.001, 10.003, 10.5
    made.parts = [
        Part(made, prompt, first_choice=index * n, notice=lambda *_: None)
        for index, prompt in enumerate(call.prompts)
    ]
    return made


def stay_of(received_at: float, engine: EngineId = E) -> Stay:
    """Return a stay at an engine that has told everything it can."""
    beat = EngineHeartbeat(
        engine=engine,
        service=M,
        beat=1,
        state=EngineState.READY,
        backend="vllm",
        version="v7",
        zone="z1",
    )
    us = [1000, 2000, 3000, 4000, 500_000, 6000, 7000, 8000]
    stay = Stay(engine, beat, received_at - 0.001, is_same_clock=True, is_taken=True)
    stay.spent = Spent(
        received_at=received_at,
        until=received_at + sum(us) / 1e6,
        us=us,
        cached_tokens=31,
        host_tokens=21,
        disk_tokens=9,
        prefill_tokens=32,
        recomputed_tokens=33,
        decode_tokens=34,
        drafted_tokens=35,
        accepted_tokens=36,
        preemptions=37,
        first_step=38,
        last_step=39,
        batch_size=4.5,
        kv_blocks=41,
        blocked_by=[Blocker(request=RequestId(f"cmpl-{no}"), us=no) for no in range(5)],
        mode="FLASH_ATTN/graph",
        mode_changes=42,
    )
    stay.first_at, stay.last_at, stay.told_at = received_at + 0.1, received_at + 1, received_at + 1
    return stay


def expected_entry(caller: Caller, told: Spent) -> Ledger:
    """Return the entry of the request that the next test plays."""
    trace = caller.trace
    end_us = 10_000 + sum(told.us)
    return Ledger(
        request=RequestId("cmpl-1"),
        began_unix_us=1010_000_000,
        wall_us=1_500_000,
        us=[1000, 2000, 7000, *told.us, 1_500_000 - end_us],
        outcome=Outcome.FINISHED,
        priority=Priority.BATCH,
        door="http",
        kind="completion",
        status=200,
        tenant=TenantId("t"),
        label="mine",
        trace_id=trace.trace_id,
        span_id=trace.span_id,
        parent_id=trace.parent_id,
        trace_flags=1,
        trace_state="a=1",
        is_streamed=True,
        has_own_deadline=True,
        ttft_us=500_000,
        engine=E,
        version="v7",
        backend="vllm",
        zone="z1",
        choices=[ChoiceRecord(index=0, tokens=9, finish="stop")],
        prompt_tokens=51,
        completion_tokens=52,
        cached_tokens=53,
        host_tokens=21,
        disk_tokens=9,
        prefill_tokens=32,
        recomputed_tokens=33,
        drafted_tokens=35,
        accepted_tokens=36,
        preemptions=37,
        first_step=38,
        last_step=39,
        batch_size=4.5,
        kv_blocks=41,
        blocked_by=told.blocked_by[:3],
        mode="FLASH_ATTN/graph",
        mode_changes=42,
        max_tokens=64,
        max_token_gap_us=250_000,
    )


def test_each_figure_stands_in_its_own_field():
    shelf = Book()
    call = running(shelf.caller(tenant=TenantId("t"), label="mine"))
    (part,) = call.parts
    part.said[0].add(Delta(StreamNo(1), 0, 0, "", list(range(9)), Finish.STOP))
    part.usage = Usage(prompt_tokens=51, completion_tokens=52, cached_tokens=53)
    part.stays.present, part.stays.max_gap_s = stay_of(10.01), 0.25
    shelf.now = 11.5

    shelf.book.ended(call, Outcome.FINISHED, None).close()

    (entry,) = shelf.entries()
    told = part.stays.present.spent
    assert told is not None
    expected = expected_entry(call.caller, told)
    for field in Ledger.__struct_fields__:
        wanted, found = getattr(expected, field), getattr(entry, field)
        if field == "us":
            assert wanted == pytest.approx(found, abs=1)
            assert sum(found) == entry.wall_us
        else:
            assert wanted == found, field


def test_of_lost_engines_and_several_prompts_the_work_is_added_up():
    shelf = Book()
    call = running(shelf.caller(), prompts=2)
    first, second = call.parts
    first.stays.present = stay_of(10.01)
    first.usage = Usage(prompt_tokens=1, completion_tokens=2)
    second.stays.present = stay_of(10.01)
    second.stays.give_up("is gone", now=11.2)
    second.stays.present = stay_of(11.3, EngineId("e2"))
    second.stays.present.way = "resume"
    second.usage = Usage(prompt_tokens=3, completion_tokens=4)
    shelf.now = 12.5

    shelf.book.ended(call, Outcome.FINISHED, None).close()

    (entry,) = shelf.entries()
    assert EngineId("e2") == entry.engine
    assert [Attempt(E, "is gone", 1_191_000, "resume")] == [
        msgspec.structs.replace(one, us=round(one.us, -1)) for one in entry.attempts
    ]
    assert (4, 6) == (entry.prompt_tokens, entry.completion_tokens)
    assert (3 * 32, 3 * 37, 38) == (entry.prefill_tokens, entry.preemptions, entry.first_step)
    assert entry.wall_us == sum(entry.us)


def test_the_largest_entries_still_fit_a_message_by_the_dozen():
    shelf = Book()
    trace = continue_trace(PARENT, ",".join(f"k{no}={'v' * 12}" for no in range(32)), random_bits=5)
    call = running(
        shelf.caller(tenant=TenantId("t" * 64), label="x" * 128, trace=trace), prompts=64, n=8
    )
    for part in call.parts:
        for _ in range(8):
            part.stays.present = stay_of(10.01)
            part.stays.give_up("lost a part (no_answer)", now=11.2)
    shelf.now = 600.0
    for _ in range(MAX_BATCH):
        shelf.book.ended(call, Outcome.FAILED, ApiError(503, "x", kind="server_error")).close()

    (batch,) = shelf.book.batches(G)

    assert (MAX_CHOICES, MAX_ATTEMPTS) == (
        len(batch.ledgers[0].choices),
        len(batch.ledgers[0].attempts),
    )
    assert len(encode(batch)) < 256 * 1024


def test_a_record_is_closed_once():
    shelf = Book()
    record = shelf.refused()
    assert (1, 0) == (shelf.book.opened, shelf.book.made)

    record.close()
    record.close()

    assert (1, 1) == (shelf.book.opened, shelf.book.made)
    assert 1 == len(shelf.entries())


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (None, Outcome.LEFT),
        (400, Outcome.INVALID),
        (401, Outcome.INVALID),
        (413, Outcome.INVALID),
        (429, Outcome.REFUSED),
        (500, Outcome.FAILED),
        (503, Outcome.REFUSED),
    ],
)
def test_how_a_request_ends_that_never_became_a_call(status, outcome):
    shelf = Book()
    error = None if status is None else ApiError(status, "no", kind="kind", code="code")
    shelf.now = 10.25

    record = shelf.refused(error=error)
    shelf.now = 10.75
    record.close()

    (entry,) = shelf.entries()
    assert (outcome, status or 499) == (entry.outcome, entry.status)
    assert [250_000, *[0] * (len(STAGES) - 2), 500_000] == entry.us
    assert ("code" if error else "") == entry.code


def test_a_whole_answer_that_could_not_be_sent_has_failed():
    shelf = Book()
    call = running(shelf.caller())
    record = shelf.book.ended(call, Outcome.FINISHED, None)

    record.turn(ApiError(500, "too large", kind="server_error", code="answer_too_large"))
    record.close()

    (entry,) = shelf.entries()
    assert (Outcome.FAILED, 500, "answer_too_large") == (entry.outcome, entry.status, entry.code)


def test_batches_are_by_service_bounded_and_in_order():
    shelf = Book()
    for number in range(MAX_BATCH + 10):
        shelf.book.refused(
            shelf.caller(request=RequestId(f"r{number}")), None, model="m" if number % 5 else "x"
        ).close()

    batches = list(shelf.book.batches(G))

    assert {M, UNKNOWN_SERVICE} == {batch.service for batch in batches}
    assert all(len(batch.ledgers) <= MAX_BATCH for batch in batches)
    assert 0 == shelf.book.waiting
    for service in (M, UNKNOWN_SERVICE):
        numbers = [
            int(entry.request[1:])
            for batch in batches
            if batch.service == service
            for entry in batch.ledgers
        ]
        assert sorted(numbers) == numbers
        assert all((number % 5 != 0) == (service == M) for number in numbers)


def test_where_nobody_takes_them_the_oldest_go_first_and_are_counted():
    shelf = Book()
    for number in range(MAX_WAITING + 3):
        shelf.book.refused(shelf.caller(request=RequestId(f"r{number}")), None).close()

    assert (MAX_WAITING, 3) == (shelf.book.waiting, shelf.book.dropped)
    assert "r3" == shelf.entries()[0].request


def test_the_caller_hears_of_its_time_only_where_it_asked():
    shelf = Book()
    assert shelf.refused().timing() is None
    record = shelf.book.refused(shelf.caller(wants_timing=True), None)
    shelf.now = 10.5

    timing = record.timing()

    assert timing is not None
    assert 500_000 == sum(timing.us)
    assert timing.server_timing().startswith("receive;dur=0.000, admit;dur=0.000, ")
    assert "deliver;dur=500.000, ttft;dur=0.000, total;dur=500.000" in timing.server_timing()
    told = msgspec.json.decode(timing.json())
    assert {"request", "wall_ms", "ttft_ms", "stages_ms", "engine", "is_estimated"} == set(told)
    assert 500.0 == told["wall_ms"] == told["stages_ms"]["deliver"]


def test_a_wall_clock_that_is_set_is_followed():
    shelf = Book()
    ahead_s = [1000.0]
    book = LedgerBook({M}, stamp=lambda: 10.0, wall_time_s=lambda: 10.0 + ahead_s[0])
    ahead_s[0] = 5000.0
    book.refresh()

    book.refused(shelf.caller(), None).close()

    ((entry,),) = [batch.ledgers for batch in book.batches(G)]
    assert 5010_000_000 == entry.began_unix_us
