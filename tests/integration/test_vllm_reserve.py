"""Blocks promised before a request starts, by vLLM's own scheduling and without a model: each history at will, with both schedulers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from services.engine.reserve_plan import ReserveSettings
from tests.support.vllm_rig import imported_vllm

imported_vllm()

from vllm.v1.request import RequestStatus  # noqa: E402 - vLLM is imported above

from tests.support.vllm_core import BLOCK, BUDGET, Core, tiny_model  # noqa: E402 - vLLM is imported above

CONTEXT = 512
PLAIN = ReserveSettings(long_chunk_tokens=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration that vLLM takes for a model."""
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(params=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    """Which of the two."""
    return request.param == "async"


def core_of(model: Path, is_async: bool, **options) -> Core:
    return Core(model, is_async=is_async, **({"reserve": PLAIN} | options))


def running(core: Core) -> list[str]:
    return [request.request_id for request in core.scheduler.running]


def run_out(core: Core, *, most: int = 3000) -> int:
    """Step until nobody is left; return the preemptions."""
    preempted = 0
    for _ in range(most):
        if not core.scheduler.requests:
            return preempted
        loading = [
            ref
            for ref, request in core.scheduler.requests.items()
            # One that was aborted under way keeps its blocks until its load has ended.
            if (request.status.name == "WAITING_FOR_REMOTE_KVS" or request.is_finished())
            and ref not in core.scheduler.finished_recving_kv_req_ids
        ]
        preempted += len(core.step(loaded=loading).preempted)
    raise AssertionError(f"{list(core.scheduler.requests)} never ended")


def assert_nothing_is_promised(core: Core) -> None:
    lanes = core.scheduler._lanes
    assert (0, 0, {}, {}) == (
        lanes.reserve.promised,
        len(lanes),
        lanes.promised,
        lanes._requests,
    )
    pool = core.scheduler.kv_cache_manager.block_pool
    assert pool.num_gpu_blocks - 1 == pool.get_num_free_blocks() == lanes.uncommitted_now()


def test_a_request_that_does_not_fit_holds_up_nobody(model, is_async):
    core = core_of(model, is_async, blocks=49)
    core.add("a", 300, 100)
    core.add("b", 300, 100)
    core.add("c", 20, 20)

    core.step()
    step = core.step()
    assert ["c", "a"] == running(core)
    assert (1, 1) == (step.blocked, len(core.scheduler.waiting))

    run_out(core)
    assert_nothing_is_promised(core)


def test_nobody_is_preempted_whose_answer_has_a_bound(model, is_async):
    def preemptions(reserve: ReserveSettings | None) -> int:
        core = core_of(model, is_async, blocks=41, reserve=reserve)
        for name in "abcdef":
            core.add(name, 60, 200)
        return run_out(core)

    assert preemptions(None) > 0
    assert 0 == preemptions(PLAIN)


def test_what_is_promised_is_told_with_each_step(model, is_async):
    core = core_of(model, is_async, blocks=65)
    core.add("a", 60, 100)

    step = core.step()

    assert 60 == step.free_blocks
    assert 6 == step.promised_blocks
    assert 16 == step.reserved_blocks


def test_a_prefix_that_others_use_is_not_counted_again(model, is_async):
    core = core_of(model, is_async, blocks=33)
    prompt = list(range(100, 400))
    core.add("a", prompt, 180)
    for _ in range(6):
        core.step()

    core.add("b", [*prompt[:288], *range(600, 612)], 6)
    core.step()

    assert ["a", "b"] == running(core)
    lanes = core.scheduler._lanes
    assert (30 + 2, 0) == (lanes.reserve.promised, lanes.uncommitted_now())


def test_better_classes_start_first(model, is_async):
    core = core_of(model, is_async)
    core.scheduler.max_num_scheduled_tokens = 8
    core.add("batch", 4, priority=2)
    core.add("default", 4, priority=1)
    core.add("interactive", 4, priority=0)

    core.step()

    assert ["interactive", "default"] == running(core)


def test_without_priorities_the_order_is_that_of_arrival(model, is_async):
    core = core_of(model, is_async)
    core.scheduler._lanes._ranks = False
    core.scheduler.max_num_scheduled_tokens = 8
    for number, name in enumerate("abc"):
        core.add(name, 4, priority=2 - number)

    core.step()

    assert ["a", "b"] == running(core)


def test_an_answer_without_a_bound_is_promised_what_is_usual(model, is_async):
    core = core_of(model, is_async, blocks=64)
    for name in "abcd":
        core.add(name, 32, CONTEXT - 32)

    core.step()
    core.step()

    assert list("abcd") == running(core)
    assert 4 * 4 == core.scheduler._lanes.reserve.promised
    run_out(core)
    assert_nothing_is_promised(core)


def test_an_answer_that_outgrows_its_promise_is_promised_more(model, is_async):
    core = core_of(
        model, is_async, reserve=ReserveSettings(open_answer_tokens=16, long_chunk_tokens=0)
    )
    core.add("a", 32, CONTEXT - 32)
    for _ in range(100):
        step = core.step()

    held = core.scheduler._lanes.reserve.promised
    assert -(-130 // BLOCK) <= held <= -(-150 // BLOCK)
    assert 0 == step.promised_blocks


def test_a_long_prompt_leaves_room_in_a_step_where_others_are(model, is_async):
    core = core_of(model, is_async, reserve=ReserveSettings(long_chunk_tokens=BUDGET // 2))
    core.add("long", 400, 4)
    first = core.step()
    core.add("short", 30, 4)
    second = core.step()

    assert {"long": BUDGET} == {each.ref: each.tokens for each in first.prefills}
    assert {"long": 32, "short": 30} == {each.ref: each.tokens for each in second.prefills}


def test_time_that_went_by_for_lack_of_blocks_is_told_at_the_start(model, is_async):
    core = core_of(model, is_async, blocks=41)
    core.add("a", 300, 20)
    core.add("b", 300, 20)

    steps = [core.step() for _ in range(60)]

    queued = [each for step in steps for each in step.queued]
    assert ["b"] == [each.ref for each in queued]
    assert queued[0].us > 1000


def test_an_abort_of_a_waiting_request_leaves_nothing(model, is_async):
    core = core_of(model, is_async, blocks=41)
    core.add("a", 300, 20)
    core.add("b", 300, 20)
    core.step()

    core.abort("b")
    core.abort("a")
    core.step()

    assert_nothing_is_promised(core)


def test_all_is_preempted_and_starts_again(model, is_async):
    core = core_of(model, is_async)
    for name in "abc":
        core.add(name, 40, 20)
    core.step()
    core.step()

    core.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert 0 == core.scheduler._lanes.reserve.promised
    assert 3 == len(core.scheduler.waiting)

    run_out(core)
    assert_nothing_is_promised(core)


def test_one_that_vllm_takes_aside_is_promised_nothing(model, is_async):
    core = core_of(model, is_async, blocks=49)
    core.add("grammar", 300, 100)
    core.add("b", 300, 100)
    waiting = core.scheduler.requests["grammar"]
    waiting.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR

    core.step()
    assert ["b"] == running(core)
    waiting.status = RequestStatus.WAITING
    core.step()
    assert (1, 25) == (len(core.scheduler.waiting), core.scheduler._lanes.reserve.promised)

    run_out(core)
    assert_nothing_is_promised(core)


def test_a_load_from_a_lower_tier_is_promised_its_blocks(model, is_async):
    core = core_of(model, is_async, connects=True)
    core.add("a", 100, 20)
    step = core.step()

    assert (["a"], [], 0) == (step.loading, running(core), len(core.scheduler.waiting))
    assert 8 == core.scheduler._lanes.reserve.promised
    run_out(core)
    assert_nothing_is_promised(core)


SEEDS = 12


@pytest.mark.parametrize(
    ("kind", "is_async"),
    [("", False), ("", True), ("speculates", False), ("connects", False), ("connects", True)],
)
def test_whatever_happens_all_come_to_their_end_and_no_promise_remains(model, kind, is_async):
    for seed in range(SEEDS):
        draw = random.Random(seed)
        core = core_of(
            model,
            is_async,
            blocks=draw.randint(34, 80),
            reserve=ReserveSettings(),
            **({kind: True} if kind else {}),
        )
        for number in range(draw.randint(1, 12)):
            # Some begin alike. The connector of this test finds 32 tokens of each.
            prompt = [10 + draw.randint(0, 3)] * draw.randint(33, 400)
            core.add(f"r{number}", prompt, draw.randint(1, 100), priority=draw.randint(0, 2))
            for _ in range(draw.randint(0, 2)):
                core.step(accepted=draw.randint(0, 1))
            if draw.random() < 0.2:
                core.abort(f"r{draw.randint(0, number)}")
            lanes = core.scheduler._lanes
            assert lanes.uncommitted_now() >= 0, f"seed {seed}"
            assert set(lanes.promised) <= set(core.scheduler.requests), f"seed {seed}"

        assert 0 == run_out(core), f"seed {seed}"
        assert_nothing_is_promised(core)
