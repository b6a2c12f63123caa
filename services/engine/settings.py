"""Settings of an engine process: one frozen struct, read once at start; inner parts get only their own sub-struct.

Does not read files or the environment: `shared.settings` does.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from services.engine.reserve_plan import ReserveSettings
from shared.ids import ServiceName
from shared.logs import LogSettings
from shared.settings import NatsSettings, Secret

PREFIX = "HEADRACE_ENGINE_"
"""Begins the names of environment variables."""
STOP_S = 3.0
"""What stopping takes beyond `drain_s`: freeing the backend, flushing the bus."""


class VllmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Backend `vllm`: a real `AsyncLLM` in this process tree."""

    model: str = ""
    """Model directory in HF layout."""
    served_name: str = ""
    """Name in answers; empty: the service's name."""
    dtype: str = "auto"
    """Type of weights and activations; `auto` follows the model's config."""
    max_model_len: int | None = None
    """Context length in tokens; none: the model's own."""
    kv_cache_bytes: int = 2 << 30
    """Size of the KV block pool in host or device memory (the CPU platform); CUDA uses its memory share unless this is in `extra_args`."""
    max_num_seqs: int = 128
    """Choices in one batch. More raises throughput and lengthens each step."""
    max_num_batched_tokens: int | None = None
    """Token budget of a step; none: vLLM's own choice."""
    enforce_eager: bool | None = None
    """Skip graph capture and compilation: quicker start, slower steps on CUDA.
    None: yes on the CPU platform, where compiling takes minutes at every start; no elsewhere."""
    seed: int = 0
    """Seed of the engine's own draws; every request brings its own as well."""
    chat_template: str | None = None
    """File with a Jinja chat template; none: the model's own."""
    tool_call_parser: str | None = None
    """vLLM's name of the parser that finds tool calls in the text; none: no `auto` tool choice."""
    template_timeout_s: float = 5.0
    """Deadline of rendering one chat prompt: a template may loop for ever."""
    grammar_cpu_s: float = 8.0
    """Processor time that building the grammar of a schema may take; some would take hours. A process of its own tries it out first."""
    reserve: ReserveSettings = ReserveSettings()
    extra_args: dict[str, object] = {}
    """Further fields of vLLM's `AsyncEngineArgs`, as they are."""


class FakeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Backend `fake`: no model, text from a seed, latency from this small model of an engine."""

    seed: int = 0
    """Changes all texts."""
    max_model_len: int = 8192
    """Context length in tokens."""
    max_streams: int = 128
    """Choices in one batch."""
    total_blocks: int = 16_384
    """Blocks in the pool; a job waits while what it will need does not fit."""
    block_tokens: int = 16
    """Tokens in a block."""
    overcommit: bool = False
    """Jobs start when their prompt fits and take blocks as they grow, as vLLM's do; without a free one the youngest is preempted,
    and computed again later."""
    reserve: ReserveSettings = ReserveSettings()
    block_bytes: int = 1 << 20
    """Bytes that a block is said to have."""
    prefill_tokens_per_s: float = 20_000.0
    """Speed of prompt computation."""
    chunk_tokens: int = 2048
    """Prompt tokens computed in one step at most: a long prompt spreads over several steps."""
    step_s: float = 0.01
    """Time of a decode step with no stream in it; with 0 here and below: as fast as the loop goes."""
    stream_step_s: float = 0.0
    """Added to a step for each running choice."""
    start_s: float = 0.0
    """Time that loading takes."""
    render_s: float = 0.0
    """Time that rendering and tokenizing a prompt takes."""
    answer_tokens: int = 64
    """Length of an answer that ends by itself, on average."""
    caches_prefixes: bool = False
    """Prompts that begin as an earlier one did find its blocks while they are in the pool, and are computed from there on."""
    stamp: bool = False
    """Token text is `T%016d ` with the monotonic clock in ns: benchmarks read the latency from it."""


class OpenAiSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Backend `openai`: any server that speaks OpenAI's HTTP API (vLLM, SGLang, TGI, llama.cpp)."""

    url: str = ""
    """Base address, with `/v1` at its end."""
    api_key: Secret = Secret()
    """Sent as bearer token; empty: none. `api_key_file` names a file that holds it."""
    model: str = ""
    """Model name to ask for; empty: the first that the server lists."""
    max_model_len: int = 0
    """Context length in tokens where the server does not tell; 0: it must tell."""
    max_streams: int = 64
    """Choices that the server is given at the same time; the rest is refused as overloaded."""
    start_timeout_s: float = 60.0
    """How long the server may take to answer for the first time."""
    connect_timeout_s: float = 5.0
    """Deadline of opening a connection."""
    first_token_timeout_s: float = 300.0
    """Silence allowed before the first token: a long queue, a long prompt."""
    idle_timeout_s: float = 60.0
    """Silence allowed between two tokens."""
    probe_s: float = 5.0
    """Time between two health probes."""
    probes_lost: int = 3
    """Failed probes in a row after which the server counts as dead."""


class RingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept for resends."""

    stream_bytes: int = 1 << 20
    """Bound of one live stream: its oldest deltas go first. An answer of 8,192 tokens needs about 250 KiB."""
    total_bytes: int = 64 << 20
    """Bound of all streams together: finished ones go first, the oldest of them first."""
    finished_s: float = 30.0
    """How long a finished stream is kept: longer than any gateway takes to notice a gap."""


class KvSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """KV blocks beyond the pool: in host memory (L2), and on disk (L3) through the store of the host. Backend `vllm` only."""

    host_bytes: int = 0
    """Host memory for blocks that left the pool, taken at the start; 0: none, and nothing on disk either.
    What comes from disk comes through it, so that a prefix longer than this is loaded in part."""
    store: str = ""
    """Socket of the host's KV store; empty: nothing on disk."""
    min_tokens: int = 32_768
    """Contexts longer than this go to disk when they come for the first time; 0: all."""
    seen_blocks: int = 65_536
    """Blocks of shorter prompts that are remembered: a prefix that comes twice goes to disk; 0: none does."""
    generated: bool = False
    """Keep generated tokens too, not only prompts: worth it where answers come back in the next prompt as they were."""
    load_s: float = 2.0
    """How long a load from disk may take before its request is computed instead; to it comes what its size needs at `load_bytes_per_s`."""
    load_bytes_per_s: float = 200e6
    """A slower disk counts as stalled."""
    drain_s: float = 1.0
    """How long dropping all blocks (new weights, sleep) waits for jobs of the store; slots of those still under way stay aside."""
    load_share: float = 0.75
    """Share of L2 that loads under way and slots kept aside may take; beyond it prefixes are computed."""
    save_share: float = 0.75
    """Share of L2 that may wait for being saved; beyond it blocks are not saved, the ends of prefixes first."""


class BlackBoxSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left of an engine after a kill: see docs/how-to/after-a-crash.md."""

    folder: str = ""
    """Where the box is while the engine lives, 600 KiB; best on a tmpfs, as writes to a busy disk may stall. Empty: there is none."""
    kept_folder: str = ""
    """Where what dead engines left in `folder` is put at the start; empty: whoever starts the engines does that (`headrace up`)."""


class WarmthSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Telling gateways which beginnings of prompts are held here: see docs/how-to/where-a-prompt-goes.md."""

    enabled: bool = True
    """Whether anything is told; without it this engine is chosen by its load alone."""
    max_pieces: int = 32_768
    """Pieces of prompts that are remembered; those used longest ago go first. A piece is 256 bytes of text or more. It takes about 370
    bytes of memory here, and 80 at each gateway."""
    guess_tokens: int = 100_000
    """Size of the pool of a backend that tells neither it nor what is in it."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine process."""

    name: str = ""
    """What whoever starts this process calls it; told in heartbeats and to the bus."""
    service: ServiceName = ServiceName("default")
    """Name of the LLM service that this engine serves: what clients put into `model`."""
    backend: Literal["vllm", "fake", "openai"] = "vllm"
    """What generates the tokens."""
    nats: NatsSettings = NatsSettings()
    log: LogSettings = LogSettings()
    zone: str = ""
    """Where the engine runs; gateways prefer their own zone."""
    version: str = ""
    """Version of the service that this engine belongs to."""
    metrics_host: str = "127.0.0.1"
    """Address of the metrics page."""
    metrics_port: int = 0
    """Port of the metrics page; 0: none."""
    max_waiting: int = 512
    """Choices accepted and not yet running, beside those for which there is a free place; beyond it a submit is refused as overloaded."""
    drain_s: float = 30.0
    """Time that running streams get to finish after SIGTERM."""
    batch_bytes: int = 512 << 10
    """Bound of one token message, below the 1 MiB of a bus with NATS's defaults; more deltas are split."""
    ring: RingSettings = RingSettings()
    warmth: WarmthSettings = WarmthSettings()
    blackbox: BlackBoxSettings = BlackBoxSettings()
    kv: KvSettings = KvSettings()
    vllm: VllmSettings = VllmSettings()
    fake: FakeSettings = FakeSettings()
    openai: OpenAiSettings = OpenAiSettings()
