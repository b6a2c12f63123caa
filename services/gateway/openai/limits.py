"""How large a request may be before it is refused; values only."""

from __future__ import annotations

import msgspec


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds that protect the gateway and the engines; what a model can take is the engine's to say."""

    max_body_bytes: int = 4 * 1024 * 1024
    """Size of the JSON body at every door; 413 beyond, over HTTP before the body is read where Content-Length tells.
    A prompt of 128 k tokens is about 0.5 MB of English text; 4 MB of text hold the loop for some 30 ms.
    Each prompt must also fit a message of the NATS server (1 MiB)."""
    max_messages: int = 4096
    max_parts: int = 16_384
    """Content parts and tool calls of all messages together: a body of nothing else would hold the loop for a third of a second."""
    max_prompts: int = 256
    """Prompts of one completion request."""
    max_prompt_tokens: int = 1024 * 1024
    """Token ids of one completion request, over all its prompts."""
    max_n: int = 128
    """Choices for one prompt: OpenAI's bound."""
    max_choices: int = 512
    """Choices of one request, over all its prompts."""
    max_logprobs: int = 20
    """Alternatives at each position: OpenAI's bound for chat, vLLM's default for both."""
    max_stop: int = 16
    """Stop strings; OpenAI takes 4, vLLM more."""
    max_stop_chars: int = 256
    """Length of one stop string: so much of the answer's tail has to be held back."""
    max_stop_token_ids: int = 256
    max_logit_bias: int = 1024
    max_tools: int = 128
    max_tools_bytes: int = 512 * 1024
    """JSON of all tools together."""
    max_schema_bytes: int = 256 * 1024
    """JSON Schema of the answer."""
    max_schema_depth: int = 64
    """Nesting of a function's parameters and of an answer's JSON Schema."""
    max_label_chars: int = 512
    """Length of `model`, `user` and other labels."""
    max_timeout_s: float = 3600.0
    """Longest deadline that a caller may ask for."""
    max_answer_chars: int = 64 * 1024 * 1024
    """Text held for one answer that is not streamed."""
    assumed_output_tokens: int = 512
    """What a request without `max_tokens` is taken to generate, in `Call.work_tokens`."""
