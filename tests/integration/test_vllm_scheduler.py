"""The records of both of our schedulers, by vLLM's own scheduling and serialisation, without a model: each history at will."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.engine.steps.step import KvMoves, Prefill, Step
from tests.support.vllm_rig import imported_vllm

imported_vllm()

from tests.support import vllm_core  # noqa: E402 - vLLM is imported above
from tests.support.vllm_core import BUDGET, EXTERNAL, Core, tiny_model  # noqa: E402

NAMES = list("abcdefgh")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration that vLLM takes for a model."""
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(params=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    """Which of the two."""
    return request.param == "async"


def chunks(step: Step) -> dict[str, tuple[int, int, bool]]:
    """Return who computed a prompt: new tokens, those computed again, and whether that was all."""
    return {each.ref: (each.tokens, each.again, each.is_last) for each in step.prefills}


def test_chunks_are_told_and_decodes_are_counted(model, is_async):
    core = Core(model, is_async=is_async)
    core.add("a", 100)

    steps = [core.step(), core.step()]
    core.add("b", 20)
    steps += [core.step(), core.step()]

    assert [{"a": (BUDGET, 0, False)}, {"a": (36, 0, True)}, {"b": (20, 0, True)}, {}] == [
        chunks(step) for step in steps
    ]
    assert [0, 0, 1, 2] == [step.decodes for step in steps]
    assert [1, 2, 3, 4] == [step.number for step in steps]
    assert all(step.scheduled_at <= step.ended_at for step in steps)
    assert [59, 56, 54, 54] == [step.free_blocks for step in steps]
    assert {63} == {step.total_blocks for step in steps}


def test_a_prefix_that_is_there_is_told_with_the_first_chunk(model, is_async):
    core = Core(model, is_async=is_async)
    core.add("a", list(range(100, 150)), tokens=1)
    core.step()

    core.add("b", list(range(100, 150)), tokens=2)
    step = core.step()

    assert [Prefill("b", 2, cached=48, blocks=4)] == step.prefills


def test_the_blocks_that_a_request_held_are_told_at_its_end(model, is_async):
    core = Core(model, is_async=is_async)
    core.add("a", 20, tokens=2)
    core.add("b", 40, tokens=9)
    core.step()

    core.abort("b")
    step = core.step()

    assert {"a": 2, "b": 3} == {each.ref: each.blocks for each in step.held}


def test_what_a_preemption_dropped_is_computed_again(model, is_async):
    core = Core(model, is_async=is_async, blocks=7)
    core.add("a", 40, tokens=40)
    core.add("b", 20, tokens=30)
    steps = [core.step() for _ in range(80)]

    assert not core.scheduler.requests

    preempted = [step for step in steps if step.preempted]
    assert [["b"]] == [step.preempted for step in preempted]
    again = [each for step in steps for each in step.prefills if each.again]
    assert ["b"] == [each.ref for each in again]
    # All but the last token that was sampled had been computed; the prompt's whole block may still be in the cache.
    made = sum(1 for step in steps if step.number < preempted[0].number and step.decodes == 2)
    assert again[0].again in {20 + made, 20 + made - 16}
    assert 0 == again[0].tokens
    assert 0 == again[0].cached
    assert [40 + 20] == [sum(each.tokens for step in steps for each in step.prefills)]


def test_who_is_left_out_of_a_step_is_told(model, is_async):
    core = Core(model, is_async=is_async)
    for name in NAMES[:4]:
        core.add(name, 8)
    core.step()
    core.step()

    core.scheduler.max_num_scheduled_tokens = 3
    step = core.step()

    assert (3, ["d"]) == (step.decodes, step.unscheduled)


def test_a_prompt_that_is_left_out_between_two_chunks_is_no_pause(model, is_async):
    core = Core(model, is_async=is_async)
    core.add("a", 8)
    core.step()
    core.add("b", 100)
    core.step()

    core.scheduler.max_num_scheduled_tokens = 1
    step = core.step()

    assert (1, [], []) == (step.decodes, step.prefills, step.unscheduled)


def test_steps_that_overlap_keep_their_order(model):
    core = Core(model, is_async=True)
    core.add("a", 20)
    first = core.begin()
    core.add("b", 20)
    second = core.begin()

    steps = [core.end(first), core.end(second)]

    assert [{"a": (20, 0, True)}, {"b": (20, 0, True)}] == [chunks(step) for step in steps]
    assert [0, 1] == [step.decodes for step in steps]
    assert steps[1].scheduled_at < steps[0].ended_at


def test_the_second_runner_resumes_as_if_new(model):
    core = Core(model, is_async=True, blocks=7)
    core.scheduler.use_v2_model_runner = True
    core.add("a", 40, tokens=40)
    core.add("b", 20, tokens=30)
    steps = [core.step() for _ in range(80)]

    again = [each for step in steps for each in step.prefills if each.again]

    assert ["b"] == [each.ref for each in again]
    assert (0, 0) == (again[0].tokens, again[0].cached)


def test_drafts_are_told_by_request(model):
    core = Core(model, is_async=False, speculates=True)
    core.add("a", 20)
    core.add("b", 20)
    core.step()

    core.scheduler.requests["a"].spec_token_ids = [5, 6, 7]
    step = core.step(accepted=2)

    assert [("a", 3, 2)] == [(each.ref, each.drafted, each.accepted) for each in step.drafts]
    assert 2 == step.decodes


def test_loads_from_a_lower_tier_are_told_beside_the_connectors_own_statistics(model, is_async):
    core = Core(model, is_async=is_async, connects=True)
    core.add("a", 60)

    steps = [core.step(), core.step(loaded=["a"]), core.step()]

    assert [["a"], [], []] == [step.loading for step in steps]
    assert [[], ["a"], []] == [step.loaded for step in steps]
    assert [Prefill("a", 60 - EXTERNAL, cached=0, blocks=4)] == [
        Prefill(each.ref, each.tokens, cached=0, blocks=each.blocks) for each in steps[2].prefills
    ]
    assert EXTERNAL == steps[2].prefills[0].cached
    assert (EXTERNAL // 2,) * 2 == (steps[2].prefills[0].host, steps[2].prefills[0].disk)
    assert {"loads": 3} == core.connector_stats
    assert {} == core.scheduler._lower


def test_waits_for_blocks_from_below_host_memory_are_loads_too(model, is_async):
    core = Core(model, is_async=is_async, connects=True)
    core.add("a", 60)
    vllm_core.WAITS += [(["x"], []), ([], ["x"])]
    vllm_core.MOVES += [KvMoves(from_disk=5)]

    steps = [core.step(), core.step(), core.step()]

    assert [["a", "x"], [], []] == [sorted(step.loading) for step in steps]
    assert [[], ["x"], []] == [step.loaded for step in steps]
    assert [KvMoves(from_disk=5), None, None] == [step.kv for step in steps]


def test_a_request_that_ends_in_between_leaves_nothing_behind(model, is_async):
    core = Core(model, is_async=is_async, blocks=7)
    core.add("a", 40, tokens=60)
    core.add("b", 100, tokens=4)
    core.step()
    core.abort("a")
    core.abort("b")

    assert core.scheduler._midway == {}
    assert core.scheduler._computed == {}
