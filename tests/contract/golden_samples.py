"""Messages as they were on the wire when each was first released: one or more samples of every type, in `golden/`.

`python -m tests.contract.golden_samples` writes the samples that have no file yet, and nothing else: a written one is history.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from shared.codec import encode, tag_of
from shared.ids import (
    ServiceName,
    StreamNo,
    TenantId,
)
from shared.messages import (
    Accepted,
    Cancel,
    Chain,
    ChatPrompt,
    Delta,
    DeltaExtra,
    EngineHeartbeat,
    EngineState,
    Finish,
    GatewayHeartbeat,
    Message,
    Prior,
    Priority,
    Refused,
    RefuseReason,
    Resend,
    Resent,
    Sampling,
    StreamError,
    Submit,
    TextPrompt,
    TokenBatch,
    TokenLogprob,
    TokensPrompt,
    ToolCallDelta,
    TopLogprob,
    Usage,
    Warmth,
    WarmthQuery,
    WarmthWhole,
)
from tests.contract.golden_capture import CAPTURE_SAMPLES
from tests.contract.golden_host import HOST_SAMPLES
from tests.contract.golden_kvstore import KVSTORE_SAMPLES
from tests.contract.golden_ledger import ENGINE, GATEWAY, IDS, LEDGER_SAMPLES, REQUEST, STREAM

FOLDER = Path(__file__).parent / "golden"
INDEX = FOLDER / "index.json"

BASE_SUBMIT = {
    **IDS,
    "gateway": GATEWAY,
    "request": REQUEST,
    "service": ServiceName("smollm2"),
    "deadline_s": 30.5,
}
EVERY_SAMPLING = Sampling(
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    min_p=0.05,
    n=2,
    max_tokens=256,
    min_tokens=3,
    stop=("\n\n", "END"),
    stop_token_ids=(2, 3),
    seed=1_234_567_890_123,
    logprobs=5,
    presence_penalty=0.1,
    frequency_penalty=-0.2,
    repetition_penalty=1.1,
    logit_bias={50: -100.0, 51: 2.5},
    ignore_eos=True,
    json_object=True,
    json_schema=b'{"type":"object"}',
)
PLAIN = Delta(stream=STREAM, seq=0, choice=0, text=" Paris", token_ids=[3_681])
LAST = Delta(
    stream=STREAM,
    seq=1,
    choice=1,
    text="ü.",
    token_ids=[30, 31],
    finish=Finish.TOOL_CALLS,
    extra=DeltaExtra(
        logprobs=[
            TokenLogprob(
                token="ü",
                logprob=-0.25,
                token_bytes=b"\xc3\xbc",
                top=[TopLogprob(token="u", logprob=-1.5, token_bytes=b"u")],
            )
        ],
        tool_calls=[ToolCallDelta(index=0, id="call_1", name="weather", arguments='{"city":')],
        stop_reason="END",
        usage=Usage(prompt_tokens=12, completion_tokens=3, cached_tokens=8),
    ),
)
FAILED = Delta(
    stream=StreamNo(4_712),
    seq=9,
    choice=0,
    text="",
    token_ids=[],
    finish=Finish.ERROR,
    extra=DeltaExtra(
        error=StreamError(message="the engine is stopping", retryable=True, param=None)
    ),
)

SAMPLES: dict[str, Message] = {
    **CAPTURE_SAMPLES,
    **HOST_SAMPLES,
    **KVSTORE_SAMPLES,
    **LEDGER_SAMPLES,
    "submit.chat": Submit(
        **BASE_SUBMIT,
        prompt=ChatPrompt(
            messages_json=b'[{"role":"user","content":"hi"}]',
            tools_json=b'[{"type":"function","function":{"name":"weather"}}]',
            tool_choice="function:weather",
            parallel_tool_calls=False,
        ),
        sampling=EVERY_SAMPLING,
        priority=Priority.INTERACTIVE,
        tenant=TenantId("team-a"),
        trace={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    ),
    "submit.text": Submit(
        **BASE_SUBMIT, prompt=TextPrompt(text="Once upon a time"), sampling=Sampling()
    ),
    "submit.tokens": Submit(
        **BASE_SUBMIT, prompt=TokensPrompt(token_ids=[1, 300, 70_000]), sampling=Sampling(seed=1)
    ),
    "submit.prior": Submit(
        **BASE_SUBMIT,
        prompt=TextPrompt(text="Once upon a time"),
        sampling=Sampling(n=3, max_tokens=9),
        prior=(
            Prior(choice=0, token_ids=[1, 300, 70_000], chars=11),
            Prior(choice=2, token_ids=[], chars=0),
        ),
    ),
    "submit.salt": Submit(
        **BASE_SUBMIT,
        prompt=TextPrompt(text="Once upon a time"),
        sampling=Sampling(),
        prefix_salt="0af7651916cd43dd8448eb211c80319c",
    ),
    "accepted": Accepted(**IDS, prompt_tokens=12),
    "refused": Refused(
        **IDS,
        reason=RefuseReason.TOO_LONG,
        message="9000 tokens; the maximum context length is 8192",
        param="messages",
        retry_after_s=1.5,
    ),
    "refused.least": Refused(**IDS, reason=RefuseReason.DRAINING, message="stopping"),
    "cancel": Cancel(**IDS, gateway=GATEWAY),
    "resend": Resend(**IDS, gateway=GATEWAY, from_seq=3),
    "resent": Resent(**IDS, deltas=[PLAIN, LAST]),
    "resent.gone": Resent(**IDS, gone=True),
    "tokens": TokenBatch(gateway=GATEWAY, engine=ENGINE, deltas=[PLAIN, LAST, FAILED]),
    "engine_heartbeat": EngineHeartbeat(
        engine=ENGINE,
        service=ServiceName("smollm2"),
        beat=77,
        state=EngineState.READY,
        backend="vllm",
        version="1",
        name="engine-0",
        zone="a",
        host="node-1",
        max_model_len=8_192,
        max_streams=128,
        running=3,
        waiting=1,
        outstanding_tokens=1_024,
        free_blocks=900,
        total_blocks=1_000,
        block_tokens=16,
        step=123_456,
        step_age_s=0.012,
        tokens_per_s=396.5,
        reason="",
    ),
    "engine_heartbeat.resumes": EngineHeartbeat(
        engine=ENGINE,
        service=ServiceName("smollm2"),
        beat=1,
        state=EngineState.READY,
        backend="vllm",
        resumes=True,
    ),
    "engine_heartbeat.least": EngineHeartbeat(
        engine=ENGINE,
        service=ServiceName("smollm2"),
        beat=0,
        state=EngineState.STARTING,
        backend="fake",
    ),
    "gateway_heartbeat": GatewayHeartbeat(
        gateway=GATEWAY, beat=5, open_streams=12, queued=3, url="http://127.0.0.1:8000", engines=2
    ),
    "submit.chain": Submit(
        **BASE_SUBMIT,
        prompt=TextPrompt(text="Once upon"),
        sampling=Sampling(),
        chain=Chain(text_bytes=700, head_bytes=200, hashes=bytes(range(24))),
    ),
    "engine_heartbeat.warmth": EngineHeartbeat(
        engine=ENGINE,
        service=ServiceName("m"),
        beat=7,
        state=EngineState.READY,
        backend="vllm",
        warmth_seq=12,
    ),
    "warmth": Warmth(
        service=ServiceName("m"),
        engine=ENGINE,
        seq=12,
        hashes=bytes(range(16)),
        tiers=bytes([1, 0]),
        store="host-a",
        is_guess=True,
    ),
    "warmth_whole": WarmthWhole(
        engine=ENGINE, seq=12, hashes=bytes(range(16)), tiers=bytes([5, 2]), store="host-a"
    ),
    "warmth_query": WarmthQuery(engine=ENGINE, gateway=GATEWAY),
}


class Entry(msgspec.Struct, frozen=True):
    """What the index says about a sample: its tag and its content, readable."""

    tag: str
    content: object


def file_of(name: str) -> Path:
    """Return the file of a sample."""
    return FOLDER / f"{name}.msgpack"


def read_index() -> dict[str, Entry]:
    """Return what all written samples contain."""
    return msgspec.json.decode(INDEX.read_bytes(), type=dict[str, Entry]) if INDEX.exists() else {}


def content_of(message: Message) -> object:
    """Return a message as plain JSON values."""
    return msgspec.json.decode(msgspec.json.encode(message))


def write_new() -> list[str]:
    """Write the samples that have no file; return their names."""
    FOLDER.mkdir(exist_ok=True)
    index = read_index()
    new = [name for name in SAMPLES if name not in index]
    for name in new:
        message = SAMPLES[name]
        file_of(name).write_bytes(encode(message))
        index[name] = Entry(tag_of(type(message)), content_of(message))
    INDEX.write_bytes(msgspec.json.format(msgspec.json.encode(index), indent=1) + b"\n")
    return new


if __name__ == "__main__":
    sys.stdout.write(f"new samples: {', '.join(write_new()) or 'none'}\n")
