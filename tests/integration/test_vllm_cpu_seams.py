"""The parts of vLLM's code for CPUs that ours stands on, and the fault that it is there for."""

from __future__ import annotations

import inspect

import pytest
import torch

from services.engine.settings import KvSettings
from tests.support.vllm_rig import imported_vllm, settings_of

imported_vllm()

from vllm.v1.worker.cpu_model_runner import CPUModelRunner  # noqa: E402 - vLLM is imported above
from vllm.v1.worker.cpu_worker import CPUWorker  # noqa: E402

from services.engine.adapters.vllm_args import CPU_WORKER, engine_args  # noqa: E402
from services.engine.adapters.vllm_cpu_worker import SeededCpuWorker, SeededRunner  # noqa: E402


def test_a_draw_is_made_before_the_books_that_take_it_back():
    source = inspect.getsource(CPUModelRunner.sample_tokens)

    assert 0 < source.index("self._sample(") < source.index("self._bookkeeping_sync(")


def test_vllm_takes_a_draw_back_by_an_offset_that_generators_of_a_cpu_do_not_have():
    """If this fails, vLLM has mended it, and `SeededRunner` may go."""
    source = inspect.getsource(CPUModelRunner._bookkeeping_sync)

    assert "discard_request_mask.np[:num_reqs]" in source
    assert "gen.set_offset(gen.get_offset() - 4)" in source
    with pytest.raises(RuntimeError, match="offset"):
        torch.Generator().get_offset()


def test_the_worker_is_vllms_with_another_runner(smollm2):
    assert issubclass(SeededCpuWorker, CPUWorker)
    assert issubclass(SeededRunner, CPUModelRunner)
    assert f"{SeededCpuWorker.__module__}.{SeededCpuWorker.__name__}" == CPU_WORKER
    assert engine_args(settings_of(smollm2), KvSettings()).worker_cls == CPU_WORKER
    assert "self.model_runner = CPUModelRunner(" in inspect.getsource(CPUWorker.init_device)
