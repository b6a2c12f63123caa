"""Runs vLLM's CPU worker inside the core's process, on as many threads as vLLM would give a worker process of its own.

The CPU platform turns its own `uni` executor into worker processes, since a process that is already running cannot be told its
OpenMP threads by environment. A core that is forked can: it has computed nothing yet, so their number may still be set by call.
It saves a process, an import, and two hops through shared memory in each step.
"""

from __future__ import annotations

import os

import torch
from typing_extensions import override
from vllm.utils.ompmultiprocessing import OMPProcessManager
from vllm.v1.executor.uniproc_executor import UniProcExecutor

NAME = f"{__name__}.CpuCoreExecutor"
"""How vLLM is told: a qualified name is taken as it is."""


class CpuCoreExecutor(UniProcExecutor):
    """`UniProcExecutor` that sets the number of threads first."""

    @override
    def _init_executor(self) -> None:
        plan = OMPProcessManager(self.vllm_config)
        if not plan.skip_setup:
            cpus = plan.cpu_lists[0]
            torch.set_num_threads(len(cpus))
            # Threads are kept to the memory node, not one to a CPU: several engines of a host would all sit on the first ones.
            os.sched_setaffinity(0, {*cpus, *plan.reserved_cpu_list})
        super()._init_executor()
