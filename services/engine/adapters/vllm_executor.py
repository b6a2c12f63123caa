"""Runs vLLM's CPU worker inside the core's process, on as many threads as vLLM would give a worker process of its own.

The CPU platform turns its own `uni` executor into worker processes, since a process that is already running cannot be told its
OpenMP threads by environment. A core that is forked can: it has computed nothing yet, so their number may still be set by call.
It saves a process, an import, and two hops through shared memory in each step.
"""

from __future__ import annotations

import os
import signal
import sys
from copy import copy

import torch
from typing_extensions import override
from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown
from vllm.utils.ompmultiprocessing import OMPProcessManager
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from services.engine.adapters import vllm_env

NAME = f"{__name__}.CpuCoreExecutor"
"""How vLLM is told: a qualified name is taken as it is."""
TEARDOWN_S = 0.5
"""From the executor's end to that of its process; what the scheduler does between needs milliseconds."""


class CpuCoreExecutor(UniProcExecutor):
    """`UniProcExecutor` that sets the number of threads first, leaves no file, and ends soon."""

    @override
    def _init_executor(self) -> None:
        # vLLM takes a thread from the model for a connector that has one busy all the time; ours works for milliseconds.
        config = copy(self.vllm_config)
        config.kv_transfer_config = None
        plan = OMPProcessManager(config)
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
        """Let the KV connector finish; where the core was told to end, its process does so soon after.

        vLLM's own teardown frees memory for processes that go on: it collects garbage among all that was ever imported, which takes
        seconds and a copy of each page that is shared with the zygote. A core that failed takes that time, and ends with its own code.
        """
        ensure_kv_transfer_shutdown()
        if isinstance(sys.exception(), SystemExit):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, TEARDOWN_S)
