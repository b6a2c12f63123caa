"""What `headrace up` starts: options in, process plans out. Pure; nothing is started or checked here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

GIB = 1 << 30
KV_DISK_BYTES = 20 * GIB
KV_FREE_SHARE = 4
KV_STOP_S = 10.0
"""Its drain of 5 s and what ending takes."""

TRACER_STOP_S = 10.0
"""Its drain of 5 s and what ending takes."""
OPERATOR_STOP_S = 5.0
HOST_STOP_S = 12.0
"""What ending takes beyond the drain of its engines."""


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the person asked for."""

    engines: int = 1
    gateways: int = 1
    """More share the HTTP port."""
    host: str = "127.0.0.1"
    port: int = 8000
    nats_port: int = 4222
    service: str = ""
    """Empty: the model's name."""
    model: str = "smollm2"
    """Name in the model store, or a directory in HF layout."""
    fake: bool = False
    """The seeded fake engine instead of vLLM: no model, no memory, instant start."""
    upstream: str = ""
    """Address of an OpenAI-compatible server that serves instead of an engine of ours."""
    kv_cache_bytes: int = 2 * GIB
    kv_host_bytes: int = GIB // 2
    """Host memory of an engine for blocks that left its pool; 0: none, and nothing from disk."""
    kv_store: str = ""
    """Socket of this host's KV store; empty: there is none."""
    kv_min_tokens: int = 32_768
    """Contexts longer than this go to disk at once; shorter prefixes when they come twice."""
    max_model_len: int | None = None
    api_keys: str = ""
    """File with hashed API keys; empty: open, which is allowed on loopback only."""
    tracer: bool = True
    """Whether a tracer runs: the metrics of all requests, and their traces."""
    otlp: str = ""
    """Address of the collector that gets traces; empty: none are made."""
    trace_policies: str = ""
    """File with what services want of their traces."""
    metrics_port: int = 9103
    """Loopback port of the tracer's metrics page."""
    kv_folders: tuple[str, ...] = ()
    """Where the KV store of this host keeps blocks: a folder, or two on disks of their own; empty: in the platform's folder."""
    kv_disk_bytes: int | None = None
    """What it may take on each; 0: no store; None: `KV_DISK_BYTES`, or a quarter of what is free, if that is less."""
    engine_settings: dict[str, str] = {}
    """Further settings of the engine, as `vllm-max-num-seqs`: `64`."""
    start_timeout_s: float = 600.0
    drain_s: float = 30.0

    @property
    def backend(self) -> Literal["vllm", "fake", "openai"]:
        """Which adapter the engines use."""
        if self.fake:
            return "fake"
        return "openai" if self.upstream else "vllm"

    @property
    def has_kv_store(self) -> bool:
        """Whether a KV store runs: only our own engines can use one."""
        return self.backend == "vllm" and self.kv_disk_bytes != 0


class ProcessPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One process: `python -m module args` with these variables on top of the environment."""

    name: str
    module: str
    args: tuple[str, ...]
    env: dict[str, str]
    stop_s: float
    metrics_port: int = 0
    """Loopback port of its metrics page."""


def nats_env(
    prefix: str, options: UpOptions, *, user: str, secrets: Mapping[str, Path]
) -> dict[str, str]:
    """Return how a service reaches the bus; the password travels as a file that only its owner can read."""
    return {
        f"HEADRACE_{prefix}_NATS_URL": f"nats://127.0.0.1:{options.nats_port}",
        f"HEADRACE_{prefix}_NATS_USER": user,
        f"HEADRACE_{prefix}_NATS_PASSWORD_FILE": str(secrets[user]),
    }


def gateway_plans(
    options: UpOptions, *, secrets: Mapping[str, Path], metrics_ports: Sequence[int]
) -> list[ProcessPlan]:
    """Plan the doors; the kernel shares new connections out among several on one port, so each has a metrics page of its own."""
    args = ["--http-host", options.host, "--http-port", str(options.port)]
    if options.gateways > 1:
        args += ["--http-reuse-port", "true"]
    if options.api_keys:
        args += ["--keys-file", options.api_keys]
    env = nats_env("GATEWAY", options, user="gateway", secrets=secrets)
    return [
        ProcessPlan(
            name=f"gateway-{number}",
            module="services.gateway",
            args=(*args, "--metrics-port", str(port)),
            env=env,
            stop_s=options.drain_s + 5.0,
            metrics_port=port,
        )
        for number, port in zip(range(options.gateways), metrics_ports, strict=True)
    ]


def operator_plan(
    options: UpOptions, *, secrets: Mapping[str, Path], metrics_port: int
) -> ProcessPlan:
    """Plan the operator. It need not wait for other hosts than the one that is started beside it."""
    return ProcessPlan(
        name="operator",
        module="services.operator",
        args=("--metrics-port", str(metrics_port), "--hosts", "1"),
        env=nats_env("OPERATOR", options, user="operator", secrets=secrets),
        stop_s=OPERATOR_STOP_S,
        metrics_port=metrics_port,
    )


def host_plan(
    options: UpOptions,
    *,
    folder: Path,
    models: Path,
    secrets: Mapping[str, Path],
    metrics_port: int,
) -> ProcessPlan:
    """Plan the host, in the platform's folder; it gives engines a password of their own."""
    args = ["--folder", str(folder), "--models", str(models), "--drain-s", str(options.drain_s)]
    args += ["--warm", "vllm" if options.backend == "vllm" else "plain"]
    args += ["--metrics-port", str(metrics_port), "--engine-user", "engine"]
    args += ["--engine-password-file", str(secrets["engine"])]
    if options.kv_store:
        args += ["--kv-store", options.kv_store]
    return ProcessPlan(
        name="host",
        module="services.host",
        args=tuple(args),
        env=nats_env("HOST", options, user="host", secrets=secrets),
        stop_s=options.drain_s + HOST_STOP_S,
        metrics_port=metrics_port,
    )


def tracer_plans(options: UpOptions, *, secrets: Mapping[str, Path]) -> list[ProcessPlan]:
    """Plan the tracer; a collector's keys come from the environment (`HEADRACE_TRACER_OTLP_HEADERS`)."""
    if not options.tracer:
        return []
    args = ["--metrics-port", str(options.metrics_port)]
    if options.otlp:
        args += ["--otlp-url", options.otlp]
    if options.trace_policies:
        args += ["--policies", options.trace_policies]
    return [
        ProcessPlan(
            name="tracer",
            module="services.tracer",
            args=tuple(args),
            env=nats_env("TRACER", options, user="tracer", secrets=secrets),
            stop_s=TRACER_STOP_S,
            metrics_port=options.metrics_port,
        )
    ]


def kv_budget(options: UpOptions, *, free_bytes: int) -> int:
    """Return what the KV store may take on each disk; `free_bytes` is what the fuller one has left."""
    if options.kv_disk_bytes is not None:
        return options.kv_disk_bytes
    return min(KV_DISK_BYTES, free_bytes // KV_FREE_SHARE)


def kv_store_plan(
    options: UpOptions,
    *,
    folders: Sequence[Path],
    budget_bytes: int,
    secrets: Mapping[str, Path],
    metrics_port: int,
) -> ProcessPlan:
    """Plan the KV store of this host; engines reach it at `options.kv_store`."""
    args = ["--socket", options.kv_store, "--budget-bytes", str(budget_bytes)]
    args += ["--folders", json.dumps([str(folder) for folder in folders])]
    return ProcessPlan(
        name="kvstore",
        module="services.kvstore",
        args=(*args, "--metrics-port", str(metrics_port)),
        env=nats_env("KVSTORE", options, user="kvstore", secrets=secrets),
        stop_s=KV_STOP_S,
        metrics_port=metrics_port,
    )
