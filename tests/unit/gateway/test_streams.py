"""Deltas reach their sink once and in order, or the stream is reported lost."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.streams import (
    AskResend,
    CancelStray,
    LossReason,
    StreamLost,
    StreamSettings,
    StreamTable,
)
from shared.ids import EngineId, GatewayId, StreamNo
from shared.messages import Delta, Resent, TokenBatch

E = EngineId("e1")


def delta(no: int, seq: int) -> Delta:
    return Delta(StreamNo(no), seq, 0, f"t{seq}", [seq])


def batch(*deltas: Delta) -> TokenBatch:
    return TokenBatch(gateway=GatewayId("g"), engine=E, deltas=list(deltas))


class Reader:
    """A table with one open stream and what its sink got."""

    def __init__(self, *, last: int = 10**9, **settings) -> None:
        self.table = StreamTable(StreamSettings(**settings))
        self.got: list[int] = []
        self.last = last
        self.no = self.table.open(E, self.sink)

    def sink(self, item: Delta, now: float) -> None:
        self.got.append(item.seq)
        if item.seq == self.last:
            self.table.close(self.no, now=0.0)

    def feed(self, *seqs: int, now: float = 0.0):
        return self.table.on_batch(batch(*(delta(self.no, seq) for seq in seqs)), now=now)


def test_deltas_in_order_go_straight_to_the_sink():
    reader = Reader()

    assert [] == reader.feed(0, 1, 2)
    assert [0, 1, 2] == reader.got


def test_a_gap_holds_back_and_asks_once():
    reader = Reader()

    effects = reader.feed(0, 2, 3)

    assert [AskResend(E, reader.no, 1)] == effects
    assert [0] == reader.got
    assert [] == reader.feed(4)


def test_the_answer_fills_the_gap():
    reader = Reader()
    reader.feed(0, 2, 3)

    effects = reader.table.on_resent(
        Resent(engine=E, stream=reader.no, deltas=[delta(reader.no, s) for s in (1, 2, 3, 4)]),
        now=0.0,
    )

    assert [] == effects
    assert [0, 1, 2, 3, 4] == reader.got
    assert [] == reader.feed(4, 5)
    assert [0, 1, 2, 3, 4, 5] == reader.got


def test_a_mere_change_of_order_repairs_itself():
    reader = Reader()

    reader.feed(1, 0, 2)

    assert [0, 1, 2] == reader.got


def test_duplicates_are_dropped():
    reader = Reader()

    reader.feed(0, 0, 1, 0, 1)

    assert [0, 1] == reader.got
    assert 3 == reader.table.duplicates


def test_gone_deltas_lose_the_stream():
    reader = Reader()
    reader.feed(0, 2)

    effects = reader.table.on_resent(Resent(engine=E, stream=reader.no, gone=True), now=0.0)

    assert [StreamLost(E, reader.no, LossReason.GONE)] == effects
    assert 0 == len(reader.table)


def test_three_failed_questions_lose_the_stream():
    reader = Reader()
    reader.feed(0, 2)

    assert [AskResend(E, reader.no, 1)] == reader.table.on_no_answer(reader.no)
    assert [AskResend(E, reader.no, 1)] == reader.table.on_no_answer(reader.no)
    assert [StreamLost(E, reader.no, LossReason.NO_ANSWER)] == reader.table.on_no_answer(reader.no)


def test_an_answer_that_does_not_fill_the_gap_asks_again():
    reader = Reader()
    reader.feed(0, 2)

    effects = reader.table.on_resent(Resent(engine=E, stream=reader.no, deltas=[]), now=0.0)

    assert [AskResend(E, reader.no, 1)] == effects


def test_questions_that_late_deltas_answer_first_are_not_in_vain():
    reader = Reader()
    reader.feed(0, 2)

    for seq in range(1, 21, 2):
        reader.feed(seq, seq + 3)
        answer = Resent(engine=E, stream=reader.no, deltas=[delta(reader.no, seq)])
        effects = reader.table.on_resent(answer, now=0.0)
        assert [AskResend(E, reader.no, seq + 2)] == effects

    assert list(range(21)) == reader.got


def test_a_question_without_an_answer_is_settled_where_the_stream_goes_on():
    reader = Reader()
    reader.feed(0, 2)
    reader.feed(1, 3)

    assert [] == reader.table.on_no_answer(reader.no)
    assert [0, 1, 2, 3] == reader.got


def test_an_engine_that_is_away_is_asked_again_later_and_in_the_end_lost():
    reader = Reader(put_off_s=1.0)
    table, no = reader.table, reader.no
    again = AskResend(E, no, 1)
    reader.feed(0, 2)

    assert [] == table.put_off(no, now=0.0, is_vain=True)
    assert ([], [again]) == (table.tick(now=0.9), table.tick(now=1.0))
    assert [] == table.put_off(no, now=1.0, is_vain=True)
    assert ([], [again]) == (table.tick(now=2.9), table.tick(now=3.0))
    assert [StreamLost(E, no, LossReason.NO_ANSWER)] == table.put_off(no, now=3.0, is_vain=True)


def test_questions_that_a_silent_bus_swallows_are_not_counted():
    reader = Reader(put_off_s=1.0)
    reader.feed(0, 2)

    for now in range(20):
        assert [] == reader.table.put_off(reader.no, now=now, is_vain=False)
        assert [] == reader.feed(2, 3 + now)
        assert [AskResend(E, reader.no, 1)] == reader.table.tick(now=now + 1.0)


def test_a_question_that_is_put_off_is_dropped_where_the_stream_goes_on():
    reader = Reader(put_off_s=1.0, quiet_s=4.0)
    reader.feed(0, 2)
    reader.table.put_off(reader.no, now=0.0, is_vain=True)

    reader.feed(1)

    assert [] == reader.table.tick(now=1.0)
    assert [AskResend(E, reader.no, 3)] == reader.feed(4)


def test_all_streams_that_an_engine_has_can_be_given_up():
    reader = Reader()
    reader.table.open(E, reader.sink)
    reader.feed(0)

    assert [StreamLost(E, reader.no, LossReason.NO_BUS)] == reader.table.lose_all(LossReason.NO_BUS)
    assert 1 == len(reader.table)


def test_too_much_behind_a_gap_loses_the_stream():
    reader = Reader(max_held=3)

    effects = reader.feed(0, 2, 3, 4, 5)

    assert StreamLost(E, reader.no, LossReason.TOO_FAR) == effects[-1]


def test_the_sink_may_close_its_stream_in_the_middle_of_a_repair():
    reader = Reader(last=2)
    reader.feed(0, 2, 3)

    reader.table.on_resent(
        Resent(engine=E, stream=reader.no, deltas=[delta(reader.no, s) for s in (1, 2, 3)]),
        now=0.0,
    )

    assert [0, 1, 2] == reader.got
    assert 0 == len(reader.table)


def test_unknown_streams_are_cancelled_but_not_often():
    table = StreamTable(StreamSettings())

    assert [CancelStray(E, StreamNo(9))] == table.on_batch(batch(delta(9, 0)), now=0.0)
    assert [] == table.on_batch(batch(delta(9, 1)), now=0.5)
    assert [CancelStray(E, StreamNo(9))] == table.on_batch(batch(delta(9, 2)), now=1.1)


def test_late_deltas_of_a_stream_that_was_just_closed_are_expected():
    reader = Reader()
    reader.table.close(reader.no, now=0.0)

    assert [] == reader.feed(0, now=0.2)


def test_a_quiet_stream_is_asked_about_ever_less_often():
    reader = Reader()
    reader.table.started(reader.no)
    asked = []
    for second in range(64):
        for effect in reader.table.tick(now=float(second)):
            assert isinstance(effect, AskResend)
            asked.append(second)
            reader.table.on_resent(Resent(engine=E, stream=reader.no, deltas=[]), now=0.0)

    assert [4, 12, 28, 60] == asked


def test_a_stream_that_the_engine_has_not_taken_yet_is_not_asked_about():
    reader = Reader()

    assert [] == [e for second in range(60) for e in reader.table.tick(now=float(second))]


def test_memory_of_closed_streams_is_bounded():
    table = StreamTable(StreamSettings(strays_kept=10))
    for _ in range(100):
        table.close(table.open(E, lambda _: None), now=0.0)

    assert 10 == len(table._strays)


@given(st.integers(0, 2**32), st.integers(1, 60), st.floats(0, 0.5), st.floats(0, 0.3))
def test_loss_doubling_and_disorder_never_show(seed, count, loss, doubled):
    """The engine keeps all deltas and answers each question; what the sink gets is the whole stream, once, in order."""
    rng = random.Random(seed)
    reader = Reader(last=count - 1)
    everything = [delta(reader.no, seq) for seq in range(count)]
    wire = [d for d in everything if rng.random() >= loss]
    wire += [d for d in wire if rng.random() < doubled]
    wire.sort(key=lambda d: d.seq + rng.random() * 4)
    questions: list[AskResend] = []

    def note(effects) -> None:
        assert not any(isinstance(e, StreamLost) for e in effects)
        questions.extend(e for e in effects if isinstance(e, AskResend))

    def answer() -> None:
        ask = questions.pop(0)
        rest = everything[ask.from_seq :]
        note(reader.table.on_resent(Resent(engine=E, stream=ask.stream, deltas=rest), now=0.0))

    for item in wire:
        note(reader.table.on_batch(batch(item), now=0.0))
        if questions and rng.random() < 0.5:
            answer()
    for second in range(100):
        note(reader.table.tick(now=float(second)))
        reader.table.started(reader.no)
        while questions:
            answer()

    assert list(range(count)) == reader.got
    assert 0 == len(reader.table)
