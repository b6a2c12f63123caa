"""Which adapter serves. Imported only when chosen: vLLM takes ten seconds and gigabytes, and is not there where only others serve."""

from __future__ import annotations

from functools import partial

from services.engine.adapters.late import LateEngine
from services.engine.ports import Devices, EngineFailedError, InferenceEngine
from services.engine.settings import EngineSettings
from services.engine.stepbook import StepBook


def make_backend(settings: EngineSettings) -> InferenceEngine:
    """Return the backend that the settings name, not yet started."""
    match settings.backend:
        case "vllm":
            return LateEngine(partial(_vllm, settings))
        case "fake":
            from services.engine.adapters.fake import FakeEngine  # noqa: PLC0415

            return FakeEngine(settings.fake)
        case "openai":
            from services.engine.adapters.openai_url import OpenAiEngine  # noqa: PLC0415

            return OpenAiEngine(settings.openai)


def _vllm(settings: EngineSettings, book: StepBook) -> InferenceEngine:
    """Return real vLLM. Raises `EngineFailedError`."""
    try:
        from services.engine.adapters.vllm_preload import preload  # noqa: PLC0415

        preload()
        from services.engine.adapters.vllm_engine import VllmEngine  # noqa: PLC0415
    except (
        Exception
    ) as error:  # an import meets all of vLLM's libraries, and each raises what it likes
        raise EngineFailedError(f"vLLM cannot be imported: {error!r}") from error
    return VllmEngine(settings.vllm, book, settings.kv)


def find_devices(settings: EngineSettings) -> Devices | None:
    """Return what reads the accelerators' memory; none where the backend has none, or is not in this process. Once it has started."""
    if settings.backend != "vllm":
        return None
    from services.engine.adapters.vllm_devices import device_memory  # noqa: PLC0415

    return device_memory()
