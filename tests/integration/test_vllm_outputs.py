"""What the adapter makes of vLLM's outputs and statistics, by vLLM's own types and without an engine."""

from __future__ import annotations

import asyncio
import math

import msgspec
import pytest

from services.engine.ports import Limits, Piece
from services.engine.stepbook import StepBook
from services.engine.steps.step import Prefill, Step
from shared.ids import RequestId
from shared.messages import ENGINE_STAGES, Finish
from tests.support.engine_rig import job_of
from tests.support.tiny_tokenizers import byte_level
from tests.support.vllm_rig import ANY_TOOL, chat, imported_vllm

imported_vllm()

from vllm.logprobs import Logprob  # noqa: E402 - after the switches that vLLM reads when it is imported
from vllm.outputs import CompletionOutput, RequestOutput  # noqa: E402

from services.engine.adapters.token_bytes import TokenBytes  # noqa: E402
from services.engine.adapters.vllm_load import StepStats, load_of  # noqa: E402
from services.engine.adapters.vllm_outputs import Answer, ChoiceOutput, finite  # noqa: E402
from services.engine.adapters.vllm_scheduler import KEY  # noqa: E402
from services.engine.adapters.vllm_shape import shape_of  # noqa: E402
from services.engine.adapters.vllm_steps import StepGate  # noqa: E402

LIMITS = Limits(
    backend="vllm",
    model="m",
    version="0",
    max_model_len=100,
    max_streams=8,
    total_blocks=20,
    block_tokens=16,
)


class Heard:
    """An answer of vLLM's outputs, and the pieces that came."""

    def __init__(self, *, choices: int = 1, top: int | None = None) -> None:
        self.pieces: list[Piece] = []
        self.ended: list[tuple[str, bool]] = []
        self.book = StepBook()
        self.gate = StepGate(self.book, lambda: 1.0)
        self.answer = Answer(
            "k",
            lambda _, piece: self.pieces.append(piece),
            self.gate,
            on_end=lambda *end: self.ended.append(end),
        )
        self.answer.expect(
            choices, 7, token_bytes=TokenBytes(byte_level()), top=top, still_open=range(choices)
        )
        self.outputs = [
            ChoiceOutput(self.answer, choice, f"k.{choice}") for choice in range(choices)
        ]
        self.answer.request_ids = {choice: f"k.{choice}" for choice in range(choices)}

    def put(
        self,
        text: str = "",
        ids=(1,),
        reason: str | None = None,
        *,
        choice: int = 0,
        cached: int = 0,
        is_recorded: bool = True,
        **fields,
    ) -> None:
        """Take an output and, unless told otherwise, the record of its step."""
        completion = CompletionOutput(
            index=0,
            text=text,
            token_ids=list(ids),
            cumulative_logprob=None,
            logprobs=fields.get("logprobs"),
            finish_reason=reason,
            stop_reason=fields.get("stop_reason"),
        )
        self.outputs[choice].put(
            RequestOutput(
                request_id="k",
                prompt=None,
                prompt_token_ids=[],
                prompt_logprobs=None,
                outputs=[completion],
                finished=reason is not None,
                num_cached_tokens=cached,
            )
        )
        if is_recorded:
            self.gate.arrive(None)


def test_an_output_becomes_a_piece_at_once():
    heard = Heard()

    heard.put("hello", [5, 6])

    assert [Piece(0, "hello", [5, 6])] == heard.pieces


def test_the_first_and_the_last_piece_wait_for_the_record_of_their_step():
    heard = Heard()
    heard.book.open("k", RequestId("r"), received_at=0.25)
    heard.gate.enqueue("k", "k.0")

    heard.put("a", [1], is_recorded=False)
    assert [] == heard.pieces
    heard.gate.arrive(None)
    heard.put("b", [2], is_recorded=False)
    assert "ab" == "".join(piece.text for piece in heard.pieces)
    heard.put("c", [3], "stop", is_recorded=False)
    assert "ab" == "".join(piece.text for piece in heard.pieces)
    heard.gate.arrive(record(Step(1, 0.5, 0.75, prefills=[Prefill("k.0", 7)])))

    spent = [piece.extra and piece.extra.spent for piece in heard.pieces]
    assert (1, 3) == (spent[0].decode_tokens, spent[-1].decode_tokens)
    assert spent[1] is None
    assert 7 == spent[-1].prefill_tokens
    assert [("k", True)] == heard.ended


def test_no_piece_overtakes_one_that_waits():
    heard = Heard(choices=2)
    heard.put("a", [1])

    heard.put("b", [2], "stop", choice=1, is_recorded=False)
    heard.put("c", [3], is_recorded=False)
    assert ["a"] == [piece.text for piece in heard.pieces]
    heard.gate.arrive(None)
    heard.put("d", [4], is_recorded=False)

    assert ["a", "b", "c", "d"] == [piece.text for piece in heard.pieces]


def test_what_waits_when_it_is_cancelled_never_comes():
    heard = Heard()
    heard.put("a", [1], "stop", is_recorded=False)

    heard.answer.is_over = True
    heard.gate.arrive(None)

    assert [] == heard.pieces


def test_the_end_of_the_core_does_not_spoil_an_answer_that_was_whole():
    heard = Heard()
    heard.put("a", [1], "stop", is_recorded=False)

    heard.answer.fail("dead")

    assert [Finish.STOP] == [piece.finish for piece in heard.pieces]


def test_a_record_that_cannot_be_read_costs_itself_only(caplog):
    heard = Heard()
    heard.put("a", [1], is_recorded=False)

    heard.gate.arrive({KEY: b"\xc1"})

    assert ["a"] == [piece.text for piece in heard.pieces]


def test_the_statistics_of_others_are_left_alone():
    heard, stats = Heard(), {"OffloadingConnector": {"loads": 3}} | record(Step(1, 0.5, 0.75))

    heard.gate.arrive(stats)

    assert {"OffloadingConnector": {"loads": 3}} == stats
    assert heard.book.has_news


def record(step: Step) -> dict:
    """Return a step as it comes with a step's statistics."""
    return {KEY: msgspec.msgpack.encode(step)}


def test_without_our_scheduler_the_stages_are_those_seen_from_outside():
    heard = Heard()
    times = iter((0.5, 1.0, 1.0, 1.75, 1.75, 1.75))
    gate = StepGate(heard.book, lambda: next(times), sees_steps=False)
    heard.answer._gate = gate
    heard.book.open("k", RequestId("r"), received_at=0.25)
    gate.enqueue("k", "k.0")

    heard.put("a", [1], is_recorded=False)
    gate.arrive(None)
    heard.put("b", [2], "stop", is_recorded=False)
    gate.arrive(None)

    us = dict(zip(ENGINE_STAGES, heard.pieces[-1].extra.spent.us, strict=True))
    assert (250_000, 500_000, 750_000) == (us["tokenize"], us["prefill"], us["decode"])


def test_the_last_piece_of_all_choices_has_the_usage():
    heard = Heard(choices=2)

    heard.put("a", [1], cached=4)
    heard.put("", [2], "stop", choice=1, cached=6, stop_reason="###")
    heard.put("b", [3, 4], "length", cached=4)

    assert [None, Finish.STOP, Finish.LENGTH] == [piece.finish for piece in heard.pieces]
    assert heard.pieces[1].extra.stop_reason == "###"
    assert heard.pieces[1].extra.usage is None
    usage = heard.pieces[2].extra.usage
    assert (7, 4, 4) == (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
    assert [("k", True)] == heard.ended


def test_nothing_comes_once_it_is_over():
    heard = Heard()
    heard.answer.is_over = True

    heard.put("x")
    heard.answer.fail("dead")

    assert [] == heard.pieces


@pytest.mark.parametrize("reason", ["abort", "error", "unheard of"])
def test_an_end_that_is_no_answer_is_an_error(reason):
    heard = Heard(choices=2)
    heard.put("a", [1])
    heard.put("", [], reason, choice=1)

    assert [None, Finish.ERROR, Finish.ERROR] == [piece.finish for piece in heard.pieces]
    assert heard.pieces[-1].extra.error.retryable
    assert reason in heard.pieces[-1].extra.error.message
    assert heard.answer.open_choices == 2 - 2 or heard.answer.is_over


def test_exceptions_of_the_loop_are_left_to_who_watches_it():
    heard = Heard()

    heard.outputs[0].put(RuntimeError("dead"))

    assert [] == heard.pieces


def test_logprobs_are_ranked_exact_and_finite():
    heard = Heard(top=2)
    half = byte_level().encode("🙂").ids[0]
    position = {
        half: Logprob(-math.inf, 900, ""),
        40: Logprob(-0.5, 1, "a"),
        41: Logprob(math.nan, 2, "b"),
        42: Logprob(-3.0, 3, "c"),
    }

    heard.put("", [half], logprobs=[position])

    (logprob,) = heard.pieces[0].extra.logprobs
    assert -9999.0 == logprob.logprob
    assert "🙂".encode().startswith(logprob.token_bytes)
    assert logprob.token_bytes
    assert [("a", -0.5), ("b", -9999.0)] == [(top.token, top.logprob) for top in logprob.top]


@pytest.mark.parametrize(
    ("given", "expected"),
    [(-1.5, -1.5), (-math.inf, -9999.0), (math.nan, -9999.0), (-1e9, -9999.0), (0.0, 0.0)],
)
def test_a_logprob_is_a_number_that_json_has(given, expected):
    assert expected == finite(given)


class Stumbles:
    """A listener that raises."""

    def hear(self, text, token_ids, *, is_last):
        raise KeyError(text)


def test_a_parser_that_stumbles_costs_its_answer_only():
    heard = Heard()
    heard.answer.listen([Stumbles()])

    heard.put("secret words")

    assert [Finish.ERROR] == [piece.finish for piece in heard.pieces]
    error = heard.pieces[0].extra.error
    assert not error.retryable
    assert "secret" not in error.message
    assert [("k", False)] == heard.ended


def test_tool_calls_change_the_finish_but_not_a_cut():
    job = job_of(chat("hi", tools_json=ANY_TOOL, tool_choice="function:f"))
    shape = shape_of(job, None, shows_tools=False)
    for reason, finish in (("stop", Finish.TOOL_CALLS), ("length", Finish.LENGTH)):
        heard = Heard()
        heard.answer.listen([shape.new_listener()])
        heard.put('{"a": 1}', [1, 2])
        heard.put("", [3], reason)

        assert ["", ""] == [piece.text for piece in heard.pieces]
        assert '{"a": 1}' == heard.pieces[0].extra.tool_calls[0].arguments
        assert finish is heard.pieces[-1].finish


# --- load


def stats(*, running: int = 0, usage: float = 0.0) -> StepStats:
    class Scheduler:
        num_running_reqs = running
        kv_cache_usage = usage
        kv_connector_stats = None

    made = StepStats(StepGate(StepBook(), lambda: 0.0))

    async def step() -> None:
        made.record(0, Scheduler(), None, None)
        made.stepped_at = 10.0

    asyncio.run(step())
    return made


def test_an_idle_engine_is_free_whatever_the_core_said_last():
    load = load_of(stats(running=5, usage=0.9), LIMITS, open_choices=0, work_since=0.0, now=99.0)

    assert (1, LIMITS.total_blocks) == (load.free_runs, load.largest_free_run)
    assert (0, 0, 20, 1, 0.0) == (
        load.running,
        load.waiting,
        load.free_blocks,
        load.step,
        load.step_age_s,
    )


def test_what_is_open_and_not_running_waits():
    load = load_of(stats(running=5, usage=0.25), LIMITS, open_choices=7, work_since=0.0, now=10.5)

    assert (5, 2, 15, 0.5) == (load.running, load.waiting, load.free_blocks, load.step_age_s)


def test_a_hung_core_grows_old():
    ages = [
        load_of(stats(running=1), LIMITS, open_choices=1, work_since=0.0, now=now).step_age_s
        for now in (11.0, 60.0)
    ]

    assert [1.0, 50.0] == ages


def test_idle_time_does_not_count_as_age():
    assert 1.0 == load_of(stats(), LIMITS, open_choices=1, work_since=500.0, now=501.0).step_age_s
