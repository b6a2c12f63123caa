"""Specs for tests: one that says everything, and hypothesis strategies for all there are."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from shared.ids import ServiceName
from shared.messages import STAGES
from shared.spec import model
from shared.spec.checks import contradictions

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
texts = st.text(
    st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc")), min_size=1, max_size=20
)
shares = st.floats(0, 1) | st.integers(0, 100).map(lambda percent: percent / 100)
some_share = shares.filter(lambda share: share > 0)
seconds = st.floats(1e-6, 200) | st.sampled_from([0.5, 2.0, 60.0, 90.0, 200.0])
sizes = st.integers(64 << 20, 1 << 45) | st.integers(1, 1 << 20).map(
    lambda count: count << 20
).filter(lambda size: size >= 64 << 20)
scalars = (
    st.none() | st.booleans() | st.integers(-(1 << 62), 1 << 62) | st.floats(-1e9, 1e9) | texts
)
tables = st.dictionaries(texts, scalars | st.lists(scalars, max_size=3), max_size=3)


def word(part: type[Any], attr: str) -> st.SearchStrategy[str]:
    """Return one of the words that an attribute can be."""
    hint = part.__annotations__[attr]
    return st.sampled_from(get_args(eval(hint, vars(model))))  # noqa: S307 -- our own annotation


latencies = st.builds(
    model.LatencyObjective,
    threshold=st.builds(
        model.Threshold, quantile=st.sampled_from([0.5, 0.95, 0.99, 0.999]), limit_s=seconds
    ),
    metric=word(model.LatencyObjective, "metric"),
    measure_window_s=seconds,
    exclusions=st.sampled_from([(), ("first_token",)]),
    recovery=st.builds(
        model.Recovery, step_down=st.sampled_from([1.5, 2.0, 4.0]), cool_down_s=seconds
    ),
)
promises = st.none() | st.builds(model.ShareObjective, target=some_share, measure_window_s=seconds)
slos = st.builds(
    model.Slo,
    latency=st.lists(latencies, max_size=2).map(tuple),
    availability=promises,
    correctness=promises,
    accuracy=st.none()
    | st.builds(
        model.AccuracyObjective,
        eval_set=texts,
        pass_rate=some_share,
        degradation=st.builds(model.Degradation, consecutive_failures=st.integers(1, 9)),
    ),
)
samplings = st.builds(
    model.SamplingConfig,
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0.01, 1),
    top_k=st.none() | st.integers(-1, 100),
    max_tokens=st.none() | st.integers(1, 1000),
    stop=st.lists(texts, max_size=3).map(tuple),
)
scalings = st.builds(
    model.ScalingPolicy,
    min_replicas=st.integers(0, 5),
    max_replicas=st.none() | st.integers(0, 9),
    target_rps=st.none() | st.floats(0.1, 1e5),
    start_mode=word(model.ScalingPolicy, "start_mode"),
    max_surge=st.integers(0, 2),
    max_unavailable=st.integers(0, 2),
)
engines = st.builds(
    model.EngineSpec,
    backend=word(model.EngineSpec, "backend"),
    url=st.sampled_from(["", "http://127.0.0.1:8001/v1"]),
    max_model_len=st.none() | st.integers(1, 1 << 20),
    quantization=st.sampled_from(["", "awq"]),
    speculative=tables,
    tensor_parallel=st.integers(1, 2),
    args=tables,
    settings=st.dictionaries(names, texts, max_size=2),
)
specs = st.builds(
    model.LLMService,
    metadata=st.builds(
        model.Metadata,
        name=names.map(ServiceName),
        labels=st.dictionaries(texts, texts, max_size=2),
    ),
    model=st.builds(model.ModelRef, name=names, version=texts),
    resources=st.builds(
        model.ResourceLimits,
        gpu=st.integers(0, 4),
        memory_bytes=st.none() | sizes,
        cpu=st.none() | st.floats(0.1, 64),
    ),
    scaling=scalings,
    observability=st.builds(
        model.ObservabilitySpec,
        sampling_rate=st.none() | shares,
        max_spans=st.integers(1, 1000),
        export_timeout_s=seconds,
        trace_stages=st.lists(st.sampled_from([str(stage) for stage in STAGES]), max_size=3).map(
            tuple
        ),
    ),
    sampling=samplings,
    slo=slos,
    rollout=st.builds(
        model.Rollout,
        steps=st.sets(some_share, max_size=4).map(lambda steps: tuple(sorted(steps))),
        interval_s=seconds,
    ),
    kv=st.builds(
        model.KvTiers,
        pool_bytes=sizes,
        host_bytes=st.just(0) | sizes,
        disk=st.booleans(),
        share_across=word(model.KvTiers, "share_across"),
    ),
    engine=engines,
    sync_strategy=word(model.LLMService, "sync_strategy"),
    priority=word(model.LLMService, "priority"),
    zone=st.just("") | names,
    api_keys=st.lists(texts.filter(lambda text: "," not in text), max_size=2).map(tuple),
).filter(lambda spec: not contradictions(spec))


def service(name: str = "chat", **parts: Any) -> model.LLMService:
    """Return a small spec of the fake engine."""
    values = {
        "model": model.ModelRef(name="fake"),
        "engine": model.EngineSpec(backend="fake"),
        **parts,
    }
    return model.LLMService(metadata=model.Metadata(name=ServiceName(name)), **values)
