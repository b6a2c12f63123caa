"""The tables of an `LLMService` document: which keys there are, and what belongs there.

Reader, writer, schema and reference follow from these alone. Pure.
"""

from __future__ import annotations

from shared.messages import STAGES
from shared.spec import model
from shared.spec.fields import DAY_S, Table, count, field, is_cron, name, part
from shared.spec.kinds import AnyTable, Checked, Choice, Flag, Number, Several, Text, Texts
from shared.spec.promises import ROLLOUT, SLO
from shared.spec.units import Duration, Share, Size

_DEVIATION = Number(-2.0, 2.0, example="0.5")

METADATA = Table(
    cls=model.Metadata,
    fields=(
        field("name", "name", name("a name"), "what clients put into `model`"),
        field("labels", "labels", Texts("write a table of texts"), "for people"),
        field("annotations", "annotations", Texts("write a table of texts"), "for people"),
    ),
)
MODEL = Table(
    cls=model.ModelRef,
    shorthand="name",
    fields=(
        field(
            "name",
            "name",
            Text(
                "write a model's name or its directory, as smollm2",
                pattern=r"[^\s\x00-\x1f][^\x00-\x1f]{0,1023}",
            ),
            "a name in the model store (`headrace model ls`), or a directory in HF layout",
        ),
        field(
            "version",
            "version",
            Text("write a version, as 2026-11", max_chars=128),
            "for people and answers; what counts is the content of the files",
        ),
        field(
            "adapters",
            "adapters",
            Checked(
                Several(Text("write names"), "leave it out: LoRA adapters cannot be served yet"),
                "leave it out: LoRA adapters cannot be served yet",
                lambda found: not found,
            ),
            "LoRA adapters: none can be served yet, so that any is refused",
        ),
    ),
)
RESOURCES = Table(
    cls=model.ResourceLimits,
    fields=(
        field("gpu", "gpu", Number(0, 64, example="1", whole=True), "devices of one replica"),
        field(
            "memory",
            "memory_bytes",
            Size("32Gi", lowest=64 << 20),
            "host memory of one replica; a replica beyond it is ended and started again",
        ),
        field("cpu", "cpu", Number(0, 4096, example="4", above=True), "cores of one replica"),
    ),
)
SCALING = Table(
    cls=model.ScalingPolicy,
    fields=(
        field("minReplicas", "min_replicas", count("1"), "fewest replicas"),
        field(
            "maxReplicas",
            "max_replicas",
            count("4"),
            "most replicas; left out: as many as `minReplicas`",
        ),
        field(
            "targetRPS",
            "target_rps",
            Number(0, 1e6, example="20", above=True),
            "requests a second that one replica is meant to take",
        ),
        field(
            "predictiveWindow",
            "predictive_window_s",
            Duration("30s", highest_s=DAY_S),
            "how far ahead the scaler looks at least",
        ),
        field(
            "startMode",
            "start_mode",
            Choice("cold", "warm", "hot"),
            "how far a spare replica is started",
        ),
        field(
            "mode",
            "mode",
            Choice("advisory", "active", "manual"),
            "whether the scaler says, acts, or leaves it to people",
        ),
        field(
            "maxSurge",
            "max_surge",
            count("1"),
            "replicas beyond the wanted number while a change goes through",
        ),
        field(
            "maxUnavailable",
            "max_unavailable",
            count("0"),
            "replicas that may lack meanwhile",
        ),
    ),
)
CUSTOM_METRIC = Table(
    cls=model.CustomMetric,
    fields=(
        field(
            "name",
            "name",
            Text(
                "write a metric's name, as contracts_per_second",
                pattern=r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}",
            ),
            "name of the recorded series",
        ),
        field(
            "expression", "expression", Text("write PromQL"), "PromQL, checked when it is applied"
        ),
    ),
)
OBSERVABILITY = Table(
    cls=model.ObservabilitySpec,
    fields=(
        field(
            "samplingRate",
            "sampling_rate",
            Share("20%"),
            "share of ordinary requests whose traces are kept; left out: the platform's rule",
        ),
        field(
            "maxSpanPerRequest",
            "max_spans",
            Number(1, 1000, example="50", whole=True),
            "most spans of a request",
        ),
        field(
            "traceExportTimeout",
            "export_timeout_s",
            Duration("5s", highest_s=300.0),
            "deadline of handing traces to a collector once",
        ),
        field(
            "sensitiveAttrs",
            "sensitive",
            Several(
                Text("write names", pattern=r"[A-Za-z_][\w.-]{0,127}"),
                "write a list of attribute names, as [layer.attention]",
            ),
            "attributes that never leave",
        ),
        field(
            "slowThreshold",
            "slow_s",
            Duration("2s", highest_s=300.0),
            "requests that took longer are kept; left out: learned",
        ),
        field(
            "traceStages",
            "trace_stages",
            Several(
                Choice(*(str(stage) for stage in STAGES)),
                f"write a list of stages: {', '.join(STAGES)}",
            ),
            "stages that get spans; left out: all",
        ),
        part("customMetrics", "custom_metrics", CUSTOM_METRIC, "recording rules", many=True),
    ),
)
SECURITY = Table(
    cls=model.Security,
    fields=(
        field(
            "inputSanitization",
            "input_sanitization",
            Choice("off", "flag", "block"),
            "what happens to hostile payloads",
        ),
        field(
            "outputFiltering",
            "output_filtering",
            Several(
                Text("write names", pattern=r"[A-Za-z][\w-]{0,63}"),
                "write a list of what is masked, as [PII]",
            ),
            "what is masked in answers",
        ),
    ),
)
DEFRAG = Table(
    cls=model.DefragPolicy,
    fields=(
        field("enabled", "enabled", Flag(), "whether fragmentation is repaired"),
        field("threshold", "threshold", Share("0.35"), "ratio from which it is worth repairing"),
        field(
            "schedule",
            "schedule",
            Checked(
                Text("write cron, as 0 3 * * *", max_chars=128),
                "write a cron schedule of five fields, as 0 3 * * *",
                is_cron,
            ),
            "when it may run; left out: at any time",
        ),
    ),
)
SAMPLING = Table(
    cls=model.SamplingConfig,
    fields=(
        field(
            "temperature",
            "temperature",
            Number(0.0, 2.0, example="0.2"),
            "default of requests that do not say",
        ),
        field("topP", "top_p", Number(0.0, 1.0, example="0.9", above=True), "likewise"),
        field(
            "topK",
            "top_k",
            Number(-1, 1 << 20, example="40", whole=True),
            "likewise; 0 or -1: no limit",
        ),
        field("minP", "min_p", Number(0.0, 1.0, example="0.05"), "likewise"),
        field(
            "repetitionPenalty",
            "repetition_penalty",
            Number(0.0, 2.0, example="1.1", above=True),
            "likewise",
        ),
        field("presencePenalty", "presence_penalty", _DEVIATION, "likewise"),
        field("frequencyPenalty", "frequency_penalty", _DEVIATION, "likewise"),
        field(
            "maxTokens",
            "max_tokens",
            Number(1, 1 << 24, example="1024", whole=True),
            "likewise: longest answer",
        ),
        field(
            "stop",
            "stop",
            Several(
                Text("write texts", pattern=r"[\s\S]{1,256}"),
                "write a list of up to 16 texts",
                most=16,
            ),
            "likewise: texts that end an answer",
        ),
    ),
)
KV = Table(
    cls=model.KvTiers,
    fields=(
        field(
            "pool",
            "pool_bytes",
            Size("2Gi", lowest=1 << 20),
            "L1, the engine's own blocks (the CPU platform)",
        ),
        field(
            "host",
            "host_bytes",
            Size("512Mi", lowest=0),
            "L2, host memory for blocks that left the pool; 0: none",
        ),
        field("disk", "disk", Flag(), "L3, the KV store of the host, where it runs one"),
        field(
            "minTokens",
            "min_tokens",
            Number(0, 1 << 30, example="32768", whole=True),
            "longer contexts go to disk at once, others when they come twice",
        ),
        field(
            "shareAcross",
            "share_across",
            Choice("tenant", "service"),
            "who may reuse whose computed prefixes",
        ),
    ),
)
ENGINE = Table(
    cls=model.EngineSpec,
    fields=(
        field("backend", "backend", Choice("vllm", "fake", "openai"), "what generates the tokens"),
        field(
            "url",
            "url",
            Text(
                "write an address, as http://127.0.0.1:8001/v1", pattern=r"https?://[^\s]{1,1000}"
            ),
            "of an OpenAI-compatible server: backend `openai`",
        ),
        field(
            "maxModelLen",
            "max_model_len",
            Number(1, 1 << 24, example="8192", whole=True),
            "context length in tokens",
        ),
        field(
            "quantization",
            "quantization",
            Text("write vLLM's name of a method, as awq", pattern=r"[\w-]{1,64}"),
            "vLLM's `quantization`",
        ),
        field(
            "speculative",
            "speculative",
            AnyTable("write a table of vLLM's speculative_config"),
            "vLLM's `speculative_config`",
        ),
        field(
            "tensorParallel",
            "tensor_parallel",
            Number(1, 64, example="2", whole=True),
            "GPUs that share one replica's weights",
        ),
        field(
            "args",
            "args",
            AnyTable("write a table of fields of vLLM's AsyncEngineArgs"),
            "further fields of vLLM's `AsyncEngineArgs`",
        ),
        field(
            "settings",
            "settings",
            Texts("write a table of engine settings, as {vllm-max-num-seqs: 64}"),
            "further settings of the engine (settings.md)",
        ),
    ),
)
SPEC_FIELDS = (
    part("modelRef", "model", MODEL, "the weights"),
    part("resourceLimits", "resources", RESOURCES, "what one replica may take"),
    part("scalingPolicy", "scaling", SCALING, "how many replicas there may be"),
    part("observability", "observability", OBSERVABILITY, "what is seen of the requests"),
    part("security", "security", SECURITY, "what is refused and masked"),
    part("defragPolicy", "defrag", DEFRAG, "when fragmentation is repaired"),
    part("samplingConfig", "sampling", SAMPLING, "defaults of requests"),
    part("slo", "slo", SLO, "what is promised"),
    part("rollout", "rollout", ROLLOUT, "how a new version comes in"),
    part("kvTiers", "kv", KV, "where KV blocks are kept"),
    part("engine", "engine", ENGINE, "how the model is run"),
    field(
        "syncStrategy",
        "sync_strategy",
        Choice("auto", "synchronous", "asynchronous"),
        "whether the engine's scheduler waits for each step's tokens",
    ),
    field(
        "tensorParallelSync",
        "tensor_parallel_sync",
        Choice("auto", "nccl", "custom"),
        "how the GPUs of a replica add up their parts",
    ),
    field(
        "priority",
        "priority",
        Choice("interactive", "default", "batch"),
        "class of requests that do not say",
    ),
    field("zone", "zone", name("a zone"), "where its replicas run; left out: anywhere"),
    field(
        "apiKeys",
        "api_keys",
        Several(
            Text("write names", max_chars=128),
            "write a list of tenants' names (`headrace key new NAME`)",
            most=1000,
        ),
        "tenants that may use it; left out: all",
    ),
)
