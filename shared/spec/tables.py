"""The tables of an `LLMService` document: which keys there are, and what belongs there. Reader, writer, schema and reference follow from these alone."""

from __future__ import annotations

import re

import msgspec

from shared.messages import STAGES
from shared.spec import model
from shared.spec.kinds import (
    AnyTable,
    Checked,
    Choice,
    Duration,
    Flag,
    Json,
    Kind,
    Number,
    Several,
    Share,
    Size,
    Text,
    Texts,
    failures_of,
    latency_of,
)

DAY_S = 86_400.0
NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}"
_CRON_FIELD = r"(?:\*|\d{1,2}(?:-\d{1,2})?)(?:/\d{1,2})?"
_CRON_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_STEP_DOWN = re.compile(r"batch_size\s{0,2}/\s{0,2}(\d{1,3}(?:\.\d{1,6})?)")


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a table."""

    key: str
    attr: str
    about: str
    kind: Kind | None = None
    table: Table | None = None
    many: bool = False
    """A list of tables; one alone may stand without the list."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table and the values that it becomes."""

    cls: type[model.Part]
    fields: tuple[Field, ...]
    shorthand: str = ""
    """Key of what a value that is no table stands for: `availability: 99.9%`."""

    def defaults(self) -> dict[str, object]:
        """Return the values of keys that do not stand there; keys without one are required."""
        found: dict[str, object] = {}
        for field in msgspec.structs.fields(self.cls):
            if field.default is not msgspec.NODEFAULT:
                found[field.name] = field.default
            elif field.default_factory is not msgspec.NODEFAULT:
                found[field.name] = field.default_factory()
        return found


def is_cron(text: str) -> bool:
    """Return whether a text is a cron schedule of five fields within their bounds."""
    fields = text.split()
    if len(fields) != len(_CRON_BOUNDS):
        return False
    for field, (lowest, highest) in zip(fields, _CRON_BOUNDS, strict=True):
        for part in field.split(","):
            if not re.fullmatch(_CRON_FIELD, part):
                return False
            span, _, step = part.partition("/")
            numbers = [int(number) for number in span.split("-") if number != "*"]
            if any(not lowest <= number <= highest for number in numbers) or numbers != sorted(numbers):
                return False
            if step and int(step) == 0:
                return False
    return True


class _Latency:
    hint = "write a quantile and a time, as P99 < 2s"

    def read(self, value: object) -> model.Threshold:
        """See `Kind`."""
        quantile, limit_s = latency_of(value)
        return model.Threshold(quantile=quantile, limit_s=limit_s)

    def write(self, value: model.Threshold) -> object:
        """See `Kind`."""
        time = Duration("2s", highest_s=3600.0).write(value.limit_s)
        return f"P{value.quantile * 100:.9g} < {time}"

    def schema(self) -> Json:
        """See `Kind`."""
        return {"type": "string", "pattern": r"^\s*[pP]\d{1,2}(\.\d+)?\s*(<=?|≤)"}


class _StepDown:
    hint = "write batch_size and what it is divided by, as batch_size/2"

    def read(self, value: object) -> float:
        """See `Kind`."""
        match = _STEP_DOWN.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None or not 1.0 < float(match[1]) <= 100.0:
            raise ValueError
        return float(match[1])

    def write(self, value: float) -> object:
        """See `Kind`."""
        return f"batch_size/{value:.9g}"

    def schema(self) -> Json:
        """See `Kind`."""
        return {"type": "string", "pattern": r"^\s*batch_size\s*/\s*\d"}


class _Failures:
    hint = "write how many in a row, as 3 consecutive failures"

    def read(self, value: object) -> int:
        """See `Kind`."""
        return failures_of(value)

    def write(self, value: int) -> object:
        """See `Kind`."""
        return f"{value} consecutive failures"

    def schema(self) -> Json:
        """See `Kind`."""
        return {"type": ["string", "integer"]}


def _name(what: str) -> Text:
    return Text(f"write {what}: letters, digits, - and _, 63 at most", pattern=NAME)


_COUNT = {"lowest": 0, "highest": 10_000, "whole": True}
_WINDOW = Duration("5m", highest_s=30 * DAY_S)
_DEVIATION = Number(-2.0, 2.0, example="0.5")


def _field(key: str, attr: str, kind: Kind, about: str) -> Field:
    return Field(key=key, attr=attr, kind=kind, about=about)


def _part(key: str, attr: str, table: Table, about: str, *, many: bool = False) -> Field:
    return Field(key=key, attr=attr, table=table, about=about, many=many)


METADATA = Table(
    cls=model.Metadata,
    fields=(
        _field("name", "name", _name("a name"), "what clients put into `model`"),
        _field("labels", "labels", Texts("write a table of texts"), "for people"),
        _field("annotations", "annotations", Texts("write a table of texts"), "for people"),
    ),
)
MODEL = Table(
    cls=model.ModelRef,
    shorthand="name",
    fields=(
        _field(
            "name",
            "name",
            Text("write a model's name or its directory, as smollm2", pattern=r"[^\s\x00-\x1f][^\x00-\x1f]{0,1023}"),
            "a name in the model store (`headrace model ls`), or a directory in HF layout",
        ),
        _field("version", "version", Text("write a version, as 2026-11", max_chars=128), "for people and answers; what counts is the content of the files"),
        _field(
            "adapters",
            "adapters",
            Checked(Several(Text("write names"), "leave it out: LoRA adapters cannot be served yet"), "leave it out: LoRA adapters cannot be served yet", lambda found: not found),
            "LoRA adapters: none can be served yet, so that any is refused",
        ),
    ),
)
RESOURCES = Table(
    cls=model.ResourceLimits,
    fields=(
        _field("gpu", "gpu", Number(0, 64, example="1", whole=True), "devices of one replica"),
        _field("memory", "memory_bytes", Size("32Gi", lowest=64 << 20), "host memory of one replica; a replica beyond it is ended and started again"),
        _field("cpu", "cpu", Number(0, 4096, example="4", above=True), "cores of one replica"),
    ),
)
SCALING = Table(
    cls=model.ScalingPolicy,
    fields=(
        _field("minReplicas", "min_replicas", Number(**_COUNT, example="1"), "fewest replicas"),
        _field("maxReplicas", "max_replicas", Number(**_COUNT, example="4"), "most replicas; left out: as many as `minReplicas`"),
        _field("targetRPS", "target_rps", Number(0, 1e6, example="20", above=True), "requests a second that one replica is meant to take"),
        _field("predictiveWindow", "predictive_window_s", Duration("30s", highest_s=DAY_S), "how far ahead the scaler looks at least"),
        _field("startMode", "start_mode", Choice("cold", "warm", "hot"), "how far a spare replica is started"),
        _field("mode", "mode", Choice("advisory", "active", "manual"), "whether the scaler says, acts, or leaves it to people"),
        _field("maxSurge", "max_surge", Number(**_COUNT, example="1"), "replicas beyond the wanted number while a change goes through"),
        _field("maxUnavailable", "max_unavailable", Number(**_COUNT, example="0"), "replicas that may lack meanwhile"),
    ),
)
CUSTOM_METRIC = Table(
    cls=model.CustomMetric,
    fields=(
        _field("name", "name", Text("write a metric's name, as contracts_per_second", pattern=r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}"), "name of the recorded series"),
        _field("expression", "expression", Text("write PromQL"), "PromQL, checked when it is applied"),
    ),
)
OBSERVABILITY = Table(
    cls=model.ObservabilitySpec,
    fields=(
        _field("samplingRate", "sampling_rate", Share("20%"), "share of ordinary requests whose traces are kept; left out: the platform's rule"),
        _field("maxSpanPerRequest", "max_spans", Number(1, 1000, example="50", whole=True), "most spans of a request"),
        _field("traceExportTimeout", "export_timeout_s", Duration("5s", highest_s=300.0), "deadline of handing traces to a collector once"),
        _field(
            "sensitiveAttrs",
            "sensitive",
            Several(Text("write names", pattern=r"[A-Za-z_][\w.-]{0,127}"), "write a list of attribute names, as [layer.attention]"),
            "attributes that never leave",
        ),
        _field("slowThreshold", "slow_s", Duration("2s", highest_s=300.0), "requests that took longer are kept; left out: learned"),
        _field(
            "traceStages",
            "trace_stages",
            Several(Choice(*STAGES), f"write a list of stages: {', '.join(STAGES)}"),
            "stages that get spans; left out: all",
        ),
        _part("customMetrics", "custom_metrics", CUSTOM_METRIC, "recording rules", many=True),
    ),
)
SECURITY = Table(
    cls=model.Security,
    fields=(
        _field("inputSanitization", "input_sanitization", Choice("off", "flag", "block"), "what happens to hostile payloads"),
        _field("outputFiltering", "output_filtering", Several(Text("write names", pattern=r"[A-Za-z][\w-]{0,63}"), "write a list of what is masked, as [PII]"), "what is masked in answers"),
    ),
)
DEFRAG = Table(
    cls=model.DefragPolicy,
    fields=(
        _field("enabled", "enabled", Flag(), "whether fragmentation is repaired"),
        _field("threshold", "threshold", Share("0.35"), "ratio from which it is worth repairing"),
        _field("schedule", "schedule", Checked(Text("write cron, as 0 3 * * *", max_chars=128), "write a cron schedule of five fields, as 0 3 * * *", is_cron), "when it may run; left out: at any time"),
    ),
)
SAMPLING = Table(
    cls=model.SamplingConfig,
    fields=(
        _field("temperature", "temperature", Number(0.0, 2.0, example="0.2"), "default of requests that do not say"),
        _field("topP", "top_p", Number(0.0, 1.0, example="0.9", above=True), "likewise"),
        _field("topK", "top_k", Number(-1, 1 << 20, example="40", whole=True), "likewise; 0 or -1: no limit"),
        _field("minP", "min_p", Number(0.0, 1.0, example="0.05"), "likewise"),
        _field("repetitionPenalty", "repetition_penalty", Number(0.0, 2.0, example="1.1", above=True), "likewise"),
        _field("presencePenalty", "presence_penalty", _DEVIATION, "likewise"),
        _field("frequencyPenalty", "frequency_penalty", _DEVIATION, "likewise"),
        _field("maxTokens", "max_tokens", Number(1, 1 << 24, example="1024", whole=True), "likewise: longest answer"),
        _field("stop", "stop", Several(Text("write texts", pattern=r"[\s\S]{1,256}"), "write a list of up to 16 texts", most=16), "likewise: texts that end an answer"),
    ),
)
RECOVERY = Table(
    cls=model.Recovery,
    fields=(
        _field("stepDown", "step_down", _StepDown(), "how the batch limit is lowered"),
        _field("coolDown", "cool_down_s", Duration("3m", highest_s=DAY_S), "time before it is raised again"),
    ),
)
LATENCY = Table(
    cls=model.LatencyObjective,
    shorthand="threshold",
    fields=(
        _field("threshold", "threshold", _Latency(), "quantile and limit"),
        _field("metric", "metric", Choice("end_to_end", "ttft", "tpot"), "which time"),
        _field("measureWindow", "measure_window_s", _WINDOW, "over which time it is measured"),
        _field("exclusions", "exclusions", Several(Choice("first_token"), "write [first_token]"), "stretches that do not count"),
        _part("recovery", "recovery", RECOVERY, "what relieves the service"),
    ),
)
SHARE = Table(
    cls=model.ShareObjective,
    shorthand="target",
    fields=(
        _field("target", "target", Share("99.9%", above=True), "share of requests in order"),
        _field("measureWindow", "measure_window_s", _WINDOW, "over which time it is measured"),
    ),
)
DEGRADATION = Table(
    cls=model.Degradation,
    fields=(
        _field("fallback", "fallback", Choice("previous_model"), "what takes over"),
        _field("threshold", "consecutive_failures", _Failures(), "after which evaluations"),
    ),
)
ACCURACY = Table(
    cls=model.AccuracyObjective,
    fields=(
        _field("evalSet", "eval_set", Text("write a file of questions and answers", max_chars=1024), "golden set"),
        _field("passRate", "pass_rate", Share(">95%", above=True), "share that has to pass"),
        _part("degradation", "degradation", DEGRADATION, "what is done when it does not"),
    ),
)
SLO = Table(
    cls=model.Slo,
    fields=(
        _part("latency", "latency", LATENCY, "promised times", many=True),
        _part("availability", "availability", SHARE, "requests that are answered"),
        _part("correctness", "correctness", SHARE, "answers in order"),
        _part("accuracy", "accuracy", ACCURACY, "golden set that keeps passing"),
    ),
)
ROLLOUT = Table(
    cls=model.Rollout,
    fields=(
        _field("steps", "steps", Several(Share("5%", above=True), "write a list of shares, as [1%, 10%, 50%, 100%]"), "shares of the traffic that the new version gets"),
        _field("interval", "interval_s", Duration("15m", highest_s=30 * DAY_S), "time between two steps"),
        _field("match", "match", Texts("write a table of headers, as {x-canary: true}", most=16), "headers whose requests always go to the new version"),
        _field("analysis", "analysis", Several(Choice("error_rate", "ttft", "tpot", "end_to_end"), "write a list of error_rate, ttft, tpot, end_to_end"), "what is compared; left out: all"),
    ),
)
KV = Table(
    cls=model.KvTiers,
    fields=(
        _field("pool", "pool_bytes", Size("2Gi", lowest=1 << 20), "L1, the engine's own blocks (the CPU platform)"),
        _field("host", "host_bytes", Size("512Mi", lowest=0), "L2, host memory for blocks that left the pool; 0: none"),
        _field("disk", "disk", Flag(), "L3, the KV store of the host, where it runs one"),
        _field("minTokens", "min_tokens", Number(0, 1 << 30, example="32768", whole=True), "longer contexts go to disk at once, others when they come twice"),
        _field("shareAcross", "share_across", Choice("tenant", "service"), "who may reuse whose computed prefixes"),
    ),
)
ENGINE = Table(
    cls=model.EngineSpec,
    fields=(
        _field("backend", "backend", Choice("vllm", "fake", "openai"), "what generates the tokens"),
        _field("url", "url", Text("write an address, as http://127.0.0.1:8001/v1", pattern=r"https?://[^\s]{1,1000}"), "of an OpenAI-compatible server: backend `openai`"),
        _field("maxModelLen", "max_model_len", Number(1, 1 << 24, example="8192", whole=True), "context length in tokens"),
        _field("quantization", "quantization", Text("write vLLM's name of a method, as awq", pattern=r"[\w-]{1,64}"), "vLLM's `quantization`"),
        _field("speculative", "speculative", AnyTable("write a table of vLLM's speculative_config"), "vLLM's `speculative_config`"),
        _field("tensorParallel", "tensor_parallel", Number(1, 64, example="2", whole=True), "GPUs that share one replica's weights"),
        _field("args", "args", AnyTable("write a table of fields of vLLM's AsyncEngineArgs"), "further fields of vLLM's `AsyncEngineArgs`"),
        _field("settings", "settings", Texts("write a table of engine settings, as {vllm-max-num-seqs: 64}"), "further settings of the engine (settings.md)"),
    ),
)
SPEC_FIELDS = (
    _part("modelRef", "model", MODEL, "the weights"),
    _part("resourceLimits", "resources", RESOURCES, "what one replica may take"),
    _part("scalingPolicy", "scaling", SCALING, "how many replicas there may be"),
    _part("observability", "observability", OBSERVABILITY, "what is seen of the requests"),
    _part("security", "security", SECURITY, "what is refused and masked"),
    _part("defragPolicy", "defrag", DEFRAG, "when fragmentation is repaired"),
    _part("samplingConfig", "sampling", SAMPLING, "defaults of requests"),
    _part("slo", "slo", SLO, "what is promised"),
    _part("rollout", "rollout", ROLLOUT, "how a new version comes in"),
    _part("kvTiers", "kv", KV, "where KV blocks are kept"),
    _part("engine", "engine", ENGINE, "how the model is run"),
    _field("syncStrategy", "sync_strategy", Choice("auto", "synchronous", "asynchronous"), "whether the engine's scheduler waits for each step's tokens"),
    _field("tensorParallelSync", "tensor_parallel_sync", Choice("auto", "nccl", "custom"), "how the GPUs of a replica add up their parts"),
    _field("priority", "priority", Choice("interactive", "default", "batch"), "class of requests that do not say"),
    _field("zone", "zone", _name("a zone"), "where its replicas run; left out: anywhere"),
    _field("apiKeys", "api_keys", Several(Text("write names", max_chars=128), "write a list of tenants' names (`headrace key new NAME`)", most=1000), "tenants that may use it; left out: all"),
)
