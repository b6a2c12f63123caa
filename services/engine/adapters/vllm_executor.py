"""Runs vLLM's CPU worker inside the core's process, on as many threads as vLLM would give a worker process of its own.

The CPU platform turns its own `uni` executor into worker processes, since a process that is already running cannot be told its
OpenMP threads by environment. A core that is forked can: it has computed nothing yet, so their number may still be set by call.
It saves a process, an import, and two hops through shared memory in each step.
"""

from __future__ import annotations

import os
import signal

import torch
from typing_extensions import override
from vllm.utils.ompmultiprocessing import OMPProcessManager
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from services.engine.adapters import vllm_env

NAME = f"{__name__}.CpuCoreExecutor"
"""How vLLM is told: a qualified name is taken as it is."""


TEARDOWN_S = 1
"""From the end of the worker to the end of its process; the scheduler's part needs milliseconds."""


class CpuCoreExecutor(UniProcExecutor):
    """`UniProcExecutor` that sets the number of threads first, leaves no file, and ends soon."""

    @override
    def _init_executor(self) -> None:
        plan = OMPProcessManager(self.vllm_config)
        if not plan.skip_setup:
            cpus = plan.cpu_lists[0]
            torch.set_num_threads(len(cpus))
            # Threads are kept to the memory node, not one to a CPU: several engines of a host would all sit on the first ones.
            os.sched_setaffinity(0, {*cpus, *plan.reserved_cpu_list})
        super()._init_executor()

    @override
    def _distributed_args(self) -> tuple[str, int, int]:
        """Return where a group of one meets: in the engine's own folder, since vLLM's file stays where its process is killed."""
        _, rank, local_rank = super()._distributed_args()
        return f"file://{vllm_env.meeting_place()}/group", rank, local_rank

    @override
    def shutdown(self) -> None:
        super().shutdown()
        # The core goes on to collect garbage among all that was ever imported, for seconds and a copy of each shared page, only to end.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(TEARDOWN_S)
