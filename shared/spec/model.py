"""The parts of an `LLMService`, as every service of the platform sees them: checked, in SI units, with defaults filled in.

`shared.spec.reading` makes them of YAML and says what is wrong with it; `shared.spec.writing` turns them into a document again.
Durations are seconds, sizes bytes, shares 0 to 1.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from shared.ids import ServiceName

API_VERSION = "llmplatform.io/v1"
KIND = "LLMService"

GIB = 1 << 30


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the document."""


class Metadata(Part, frozen=True, kw_only=True):
    """What the service is called, and what people note on it."""

    name: ServiceName
    """What clients put into `model`."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class ModelRef(Part, frozen=True, kw_only=True):
    """The weights."""

    name: str
    """A name in the model store of the host, or a directory in HF layout."""
    version: str = ""
    """What people call this state of the weights; what counts is the fingerprint of the files."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters: none can be served yet, so that reading refuses them."""


class ResourceLimits(Part, frozen=True, kw_only=True):
    """What one replica may take; enforced by the host."""

    gpu: int = 0
    memory_bytes: int | None = None
    cpu: float | None = None
    """Cores."""


class ScalingPolicy(Part, frozen=True, kw_only=True):
    """How many replicas there may be."""

    min_replicas: int = 1
    max_replicas: int | None = None
    """None: as many as `min_replicas`; see `most`."""
    target_rps: float | None = None
    """Requests a second that one replica is meant to take."""
    predictive_window_s: float | None = None
    start_mode: Literal["cold", "warm", "hot"] = "hot"
    mode: Literal["advisory", "active", "manual"] = "manual"
    """Whether the scaler acts, or only says what it would do, or leaves it to people."""
    max_surge: int = 1
    """Replicas beyond the wanted number while a change goes through."""
    max_unavailable: int = 0
    """Replicas that may lack meanwhile."""

    @property
    def most(self) -> int:
        """Return how many replicas there may be."""
        return self.min_replicas if self.max_replicas is None else self.max_replicas


class CustomMetric(Part, frozen=True, kw_only=True):
    """A recording rule."""

    name: str
    expression: str
    """PromQL."""


class ObservabilitySpec(Part, frozen=True, kw_only=True):
    """What is seen of the requests; the first four are read by `shared.observability` too."""

    sampling_rate: float | None = None
    max_spans: int = 50
    export_timeout_s: float = 5.0
    sensitive: tuple[str, ...] = ()
    slow_s: float | None = None
    trace_stages: tuple[str, ...] = ()
    """Stages that get spans; none named: all."""
    custom_metrics: tuple[CustomMetric, ...] = ()


class Security(Part, frozen=True, kw_only=True):
    """What is refused, and what is masked."""

    input_sanitization: Literal["off", "flag", "block"] = "off"
    output_filtering: tuple[str, ...] = ()


class DefragPolicy(Part, frozen=True, kw_only=True):
    """When fragmentation is repaired."""

    enabled: bool = False
    threshold: float = 0.35
    schedule: str = ""
    """Cron, five fields; empty: whenever the threshold is crossed."""


class SamplingConfig(Part, frozen=True, kw_only=True):
    """Defaults of requests that do not say; None: the model's own."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


class Recovery(Part, frozen=True, kw_only=True):
    """What relieves a service that breaks a promise."""

    step_down: float = 2.0
    """What the batch limit is divided by."""
    cool_down_s: float = 180.0


class Threshold(Part, frozen=True, kw_only=True):
    """`P99 < 2s`."""

    quantile: float
    """0 to 1."""
    limit_s: float


class LatencyObjective(Part, frozen=True, kw_only=True):
    """Most requests are quicker than a limit."""

    threshold: Threshold
    metric: Literal["end_to_end", "ttft", "tpot"] = "end_to_end"
    measure_window_s: float = 300.0
    exclusions: tuple[str, ...] = ()
    """Stretches that do not count: `first_token`."""
    recovery: Recovery = Recovery()


class ShareObjective(Part, frozen=True, kw_only=True):
    """At least this share of requests in order."""

    target: float
    measure_window_s: float = 300.0


class Degradation(Part, frozen=True, kw_only=True):
    """What is done when an evaluation fails again and again."""

    fallback: str = "previous_model"
    consecutive_failures: int = 3


class AccuracyObjective(Part, frozen=True, kw_only=True):
    """A golden set that the service keeps passing."""

    eval_set: str
    pass_rate: float
    degradation: Degradation = Degradation()


class Slo(Part, frozen=True, kw_only=True):
    """What is promised."""

    latency: tuple[LatencyObjective, ...] = ()
    availability: ShareObjective | None = None
    correctness: ShareObjective | None = None
    accuracy: AccuracyObjective | None = None


class Rollout(Part, frozen=True, kw_only=True):
    """How a new version comes in."""

    steps: tuple[float, ...] = ()
    """Shares of the traffic; none: 1%, then 5% more each time."""
    interval_s: float = 900.0
    match: dict[str, str] = {}
    """Headers whose requests always go to the new version."""
    analysis: tuple[str, ...] = ()
    """Figures that are compared with the stable version: none named: all."""


class KvTiers(Part, frozen=True, kw_only=True):
    """Where KV blocks are kept."""

    pool_bytes: int = 2 * GIB
    """L1: the engine's own block pool (on CUDA a share of the GPU's memory instead, unless given)."""
    host_bytes: int = GIB // 2
    """L2."""
    disk: bool = True
    """L3: the host's KV store, where it runs one."""
    min_tokens: int = 32_768
    share_across: Literal["tenant", "service"] = "tenant"
    """Who may reuse whose computed prefixes."""


class EngineSpec(Part, frozen=True, kw_only=True):
    """How the model is run."""

    backend: Literal["vllm", "fake", "openai"] = "vllm"
    url: str = ""
    """Of an OpenAI-compatible server: backend `openai`."""
    max_model_len: int | None = None
    quantization: str = ""
    speculative: dict[str, object] = {}
    """vLLM's `speculative_config`."""
    tensor_parallel: int = 1
    args: dict[str, object] = {}
    """Further fields of vLLM's `AsyncEngineArgs`, as they are."""
    settings: dict[str, str] = {}
    """Further settings of the engine process (docs/reference/settings.md), as `vllm-max-num-seqs: 64`."""


class LLMService(Part, frozen=True, kw_only=True):
    """One service."""

    metadata: Metadata
    model: ModelRef
    resources: ResourceLimits = ResourceLimits()
    scaling: ScalingPolicy = ScalingPolicy()
    observability: ObservabilitySpec = ObservabilitySpec()
    security: Security = Security()
    defrag: DefragPolicy = DefragPolicy()
    sampling: SamplingConfig = SamplingConfig()
    slo: Slo = Slo()
    rollout: Rollout = Rollout()
    kv: KvTiers = KvTiers()
    engine: EngineSpec = EngineSpec()
    sync_strategy: Literal["auto", "synchronous", "asynchronous"] = "auto"
    """Whether the scheduler of the engine waits for each step's tokens before it plans the next one."""
    tensor_parallel_sync: Literal["auto", "nccl", "custom"] = "auto"
    """How the GPUs of one replica add up their parts."""
    priority: Literal["interactive", "default", "batch"] = "default"
    """Class of requests that do not say."""
    zone: str = ""
    """Where its replicas run; empty: anywhere."""
    api_keys: tuple[str, ...] = ()
    """Tenants that may use it; empty: all."""

    @property
    def name(self) -> ServiceName:
        """Return what clients put into `model`."""
        return self.metadata.name
