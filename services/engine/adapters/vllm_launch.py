"""Starts an `AsyncLLM` whose core is forked instead of imported anew; the tokenizer loads beside it, and the loop goes on meanwhile.

The way is that of vLLM's own server with several front processes: the core is launched first, then a client gets its addresses.
Works the same in a child of the zygote and in a plain process, on the loop's thread, early: a fork copies the locks of other threads.
Does not drive the engine: `vllm_engine` does.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.tokenizers.registry import cached_tokenizer_from_config
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.utils import bind_engine_zmq_listeners, launch_core_engines
from vllm.v1.executor.abstract import Executor

from services.engine.adapters import vllm_env
from services.engine.adapters.core_fork import CORE_FORK
from services.engine.adapters.vllm_args import engine_config
from services.engine.adapters.vllm_executor import CpuCoreExecutor
from services.engine.ports import EngineFailedError
from services.engine.settings import KvSettings, VllmSettings

FOLDER_PREFIX = "hr-"
"""Short: a socket's path may have 107 bytes, and vLLM's names take 37."""
CONNECT_S = 60.0
"""From a core that is ready to its first word; milliseconds, unless the machine thrashes."""
CORE_STATS = True
"""The core sends its counts with each step; `vllm_load` takes them."""
NO_TIERS = KvSettings()
SEE_LOG = "the core's own lines in this engine's log say why"


async def start_async_llm(settings: VllmSettings, kv: KvSettings = NO_TIERS) -> AsyncLLM:
    """Return the engine when its core is ready; ended by `AsyncLLM.shutdown`. Raises `EngineFailedError`.

    The end of this process, however it comes, ends the core. The end of the core is an `EngineDeadError` for who uses the engine.
    """
    try:
        core = _Core(engine_config(settings, kv))
    except EngineFailedError:
        raise
    except (
        Exception
    ) as error:  # a configuration meets all of vLLM's layers, and each raises what it likes
        raise EngineFailedError(f"vLLM cannot load {settings.model}: {error!r}") from error
    try:
        await core.ready()
        return await core.client()
    except Exception as error:
        core.end()
        raise EngineFailedError(
            f"vLLM did not start with {settings.model}: {error} ({SEE_LOG})"
        ) from error
    except asyncio.CancelledError:
        core.end()
        raise


class _Core:
    """A core that was launched, on its way to being ready."""

    def __init__(self, config: VllmConfig) -> None:
        """Fork it."""
        if config.parallel_config.data_parallel_size > 1:
            raise EngineFailedError(
                "vllm.extra_args: one engine has no data_parallel_size; start several engines instead"
            )
        self._config = config
        self._executor = Executor.get_class(config)
        self._folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        vllm_env.meet_in(self._folder)
        self._listeners = bind_engine_zmq_listeners(config)
        self._handshake = ExitStack()
        if current_platform.is_cpu() and self._executor is CpuCoreExecutor:
            vllm_env.fork_core()
        addresses = self._listeners.addresses
        launching = launch_core_engines(config, self._executor, CORE_STATS, addresses)
        with CORE_FORK.guarded():
            self._launch = self._handshake.enter_context(launching)

    async def ready(self) -> None:
        """Return when the core can serve; the tokenizer has been loaded meanwhile (vLLM keeps it for its client)."""
        config = self._config.model_config
        await asyncio.gather(
            asyncio.to_thread(self._handshake.close),
            asyncio.to_thread(cached_tokenizer_from_config, config),
        )

    async def client(self) -> AsyncLLM:
        """Return the client, which from now on owns the core: watches it, and ends it."""
        addresses = {
            "input_address": self._listeners.inputs[0].address,
            "input_listener": self._listeners.inputs[0].socket,
            "output_address": self._listeners.outputs[0].address,
            "output_listener": self._listeners.outputs[0].socket,
            "tensor_queue": self._launch.tensor_queue,
        }
        llm = AsyncLLM(
            self._config,
            self._executor,
            log_stats=False,  # the front's statistics of each token cost more than all the rest it does with it
            log_requests=False,
            client_addresses=addresses,
        )
        llm.engine_core.resources.engine_manager = self._launch.engine_manager
        llm.engine_core.start_engine_core_monitor()
        try:
            async with asyncio.timeout(CONNECT_S):
                await llm.get_supported_tasks()
        except BaseException:
            llm.shutdown(timeout=0)
            raise
        # That went through both sockets: whatever kills a process from now on, no file is left behind.
        self._remove_folder()
        return llm

    def end(self) -> None:
        """Kill the core; leaves no file."""
        self._launch.engine_manager.shutdown(timeout=0)
        self._listeners.cleanup()
        self._remove_folder()

    def _remove_folder(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
