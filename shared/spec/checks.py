"""What each value of an `LLMService` may say by itself and all of them together may not. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from shared.spec import model

Contradiction = tuple[tuple[str, ...], str, str]
"""Path of canonical keys, what is wrong, what to change."""


def contradictions(spec: model.LLMService) -> list[Contradiction]:
    """Return what cannot hold at the same time."""
    return [*_scaling(spec.scaling), *_engine(spec), *_rollout(spec.rollout), *_metrics(spec)]


def _scaling(scaling: model.ScalingPolicy) -> Iterator[Contradiction]:
    if scaling.most < scaling.min_replicas:
        yield (
            ("spec", "scalingPolicy", "maxReplicas"),
            f"{scaling.most} is less than minReplicas, {scaling.min_replicas}",
            "raise it, or lower minReplicas",
        )
    if scaling.max_surge == 0 and scaling.max_unavailable == 0:
        yield (
            ("spec", "scalingPolicy", "maxSurge"),
            "is 0, as is maxUnavailable: no change could ever go through",
            "let one of them be 1",
        )


def _engine(spec: model.LLMService) -> Iterator[Contradiction]:
    engine, gpus = spec.engine, spec.resources.gpu
    if engine.backend == "openai" and not engine.url:
        yield (
            ("spec", "engine", "url"),
            "is missing",
            "backend openai needs the address of a server",
        )
    if engine.backend != "openai" and engine.url:
        yield (
            ("spec", "engine", "url"),
            "says where an OpenAI-compatible server is",
            "write backend: openai too",
        )
    if gpus and engine.tensor_parallel > gpus:
        yield (
            ("spec", "engine", "tensorParallel"),
            f"{engine.tensor_parallel} is more than the GPUs of a replica, {gpus}",
            "raise resourceLimits.gpu",
        )
    if spec.tensor_parallel_sync != "auto" and engine.tensor_parallel == 1:
        yield (
            ("spec", "tensorParallelSync"),
            "says how several GPUs add up their parts, and there is one",
            "leave it out, or raise engine.tensorParallel",
        )
    if engine.backend != "vllm":
        for key, is_set in _vllm_only(spec):
            if is_set:
                yield (key, f"is for vLLM, and the backend is {engine.backend}", "leave it out")


def _vllm_only(spec: model.LLMService) -> Iterator[tuple[tuple[str, ...], bool]]:
    engine = spec.engine
    yield ("spec", "engine", "quantization"), bool(engine.quantization)
    yield ("spec", "engine", "speculative"), bool(engine.speculative)
    yield ("spec", "engine", "tensorParallel"), engine.tensor_parallel != 1
    yield ("spec", "engine", "args"), bool(engine.args)
    yield ("spec", "syncStrategy"), spec.sync_strategy != "auto"
    yield ("spec", "tensorParallelSync"), spec.tensor_parallel_sync != "auto"


def _rollout(rollout: model.Rollout) -> Iterator[Contradiction]:
    if list(rollout.steps) != sorted(set(rollout.steps)):
        yield (("spec", "rollout", "steps"), "do not rise", "write them in order, each once")


def _metrics(spec: model.LLMService) -> Iterator[Contradiction]:
    names = [metric.name for metric in spec.observability.custom_metrics]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield (
            ("spec", "observability", "customMetrics"),
            f"{name!r} is recorded twice",
            "give each a name of its own",
        )
