"""Which adapter serves. Imported only when chosen: vLLM takes ten seconds and gigabytes, and is not there where only others serve."""

from __future__ import annotations

from services.engine.ports import InferenceEngine
from services.engine.settings import EngineSettings


def make_backend(settings: EngineSettings) -> InferenceEngine:
    """Return the backend that the settings name, not yet started."""
    match settings.backend:
        case "vllm":
            from services.engine.adapters.vllm_preload import preload  # noqa: PLC0415

            preload()
            from services.engine.adapters.vllm_engine import VllmEngine  # noqa: PLC0415

            return VllmEngine(settings.vllm)
        case "fake":
            from services.engine.adapters.fake import FakeEngine  # noqa: PLC0415

            return FakeEngine(settings.fake)
        case "openai":
            from services.engine.adapters.openai_url import OpenAiEngine  # noqa: PLC0415

            return OpenAiEngine(settings.openai)
