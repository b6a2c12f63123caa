"""Names that existing runbooks and dashboards query, and which metric of ours each of them is. The one table of it.

The pages make the aliases from this table (`shared.metric_views.Aliased`), and docs/reference/metrics.md is made from it.
An alias has the values of its source at each scrape, and the source's labels.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Page = Literal["gateway", "engine", "tracer"]
"""A process that serves metrics."""


class Alias(msgspec.Struct, frozen=True, kw_only=True):
    """One name."""

    name: str
    """As it is queried: a counter with its `_total`, a histogram without `_bucket`."""
    source: str
    """Our name for the same, spelled the same way."""
    page: Page
    """Who serves both."""
    meaning: str
    caveat: str = ""
    """Where it differs from what a reader may expect."""
    copies: dict[str, str] = {}
    """Further labels, and the source's label that each is a copy of."""


_MODEL_NAME = {"model_name": "service"}
"""vLLM's own metrics name the model by this label."""

ALIASES: tuple[Alias, ...] = (
    Alias(
        name="vllm_gpu_cache_free_blocks",
        source="llm_engine_free_blocks",
        page="engine",
        meaning="Blocks of the KV pool that nobody uses.",
        caveat="Free blocks may hold cached prefixes: they are free to be taken, not empty. On a CPU engine the pool is in host memory.",
        copies=_MODEL_NAME,
    ),
    Alias(
        name="vllm_gpu_cache_total_blocks",
        source="llm_engine_total_blocks",
        page="engine",
        meaning="Blocks of the KV pool.",
        caveat="Without vLLM's null block, which nothing can use.",
        copies=_MODEL_NAME,
    ),
    Alias(
        name="vllm_gpu_cache_block_size_bytes",
        source="llm_engine_block_bytes",
        page="engine",
        meaning="Bytes of a block: keys and values of its tokens over all layers of one worker.",
        caveat="Not the block's tokens, which are `llm_engine_block_tokens`. With tensor parallelism each worker holds its own part.",
        copies=_MODEL_NAME,
    ),
    Alias(
        name="vllm_kv_cache_fragmentation_ratio",
        source="llm_engine_fragmentation_ratio",
        page="engine",
        meaning="1 − largest run of adjacent free blocks ÷ free blocks; 0 where no block is free.",
        caveat=(
            "Not free ÷ total, which some dashboards call so. Attention does not need adjacent blocks: what scatter costs is transfers. "
            "Seen over some hundred steps, not at one instant. The fake engine's pool has no order and says 0."
        ),
        copies=_MODEL_NAME,
    ),
    Alias(
        name="vllm_decode_tokens_total",
        source="llm_engine_tokens_total",
        page="engine",
        meaning="Tokens generated, over all choices.",
        caveat="Of streams that are still running too; prompt tokens are not in it.",
        copies=_MODEL_NAME,
    ),
    Alias(
        name="vllm_output_json_error_total",
        source="headrace_gateway_json_errors_total",
        page="gateway",
        meaning="Choices of finished answers that had to be JSON (`response_format`) and are not.",
        caveat=(
            "Whether the text is JSON (for `json_object`: an object), not whether it matches the schema. "
            "`cause` tells those that were cut off by their token limit from malformed ones."
        ),
        copies=_MODEL_NAME,
    ),
    Alias(
        name="http_requests_total",
        source="headrace_gateway_http_answers_total",
        page="gateway",
        meaning="Requests for answers over HTTP, by status.",
        caveat=(
            "Chat and completion requests, not pages such as /metrics or /health. A client that left before its answer began counts with "
            "the status that it was about to get."
        ),
        copies={"code": "status"},
    ),
    Alias(
        name="http_request_duration_seconds",
        source="headrace_gateway_http_answer_seconds",
        page="gateway",
        meaning="From the first byte of such a request read to the last byte of its answer handed to the connection.",
        caveat="A streamed answer lasts until its last token: this is no time to the first byte.",
    ),
)
