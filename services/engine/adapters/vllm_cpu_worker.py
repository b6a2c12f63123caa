"""vLLM's worker for CPUs, with seeds that survive prompts in several chunks.

After each chunk but the last one vLLM draws a token and throws it away; it takes that draw back from the request's random numbers by moving
their offset, which generators of a CPU do not have: the core died of it (0.32). Here their state is kept and put back instead.
So a seed gives the same answer however its prompt was cut, as it does on CUDA. Runs in a worker's process; CUDA has vLLM's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from typing_extensions import override
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker


class SeededRunner(CPUModelRunner):
    """`CPUModelRunner` that takes back the draws of chunks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._before: dict[int, torch.Tensor] = {}
        """State of random numbers before the draw, by place in the batch."""

    @override
    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        self._before = {
            index: generators[index].get_state() for index in self._midway() if index in generators
        }
        return super()._sample(*args, **kwargs)

    @override
    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        drawn = {index: generators.pop(index) for index in self._before}
        try:
            return super()._bookkeeping_sync(*args, **kwargs)
        finally:
            for index, generator in drawn.items():
                generator.set_state(self._before[index])
            generators.update(drawn)
            self._before = {}

    def _midway(self) -> list[int]:
        """Return the places in the batch whose prompt goes on after this step."""
        count = self.input_batch.num_reqs
        places: list[int] = np.nonzero(self.discard_request_mask.np[:count])[0].tolist()
        return places


class SeededCpuWorker(CPUWorker):
    """`CPUWorker` with that runner. Its V2 runner has a way of its own with seeds."""

    @override
    def init_device(self) -> None:
        super().init_device()
        self.model_runner: CPUModelRunner
        if type(self.model_runner) is CPUModelRunner:
            self.model_runner = SeededRunner(self.vllm_config, torch.device("cpu"))
