"""Going on, in vLLM, with an answer that another engine began: its tokens become prompt for the core, and stay output for the reader.

Exact where the next token depends on the tokens alone: log probabilities, biases, repetition penalty, stop strings, half characters.
Presence and frequency penalty, grammars and the random numbers of a seed depend on more; the gateway has those generated anew
instead (docs/reliability.md).
"""

from __future__ import annotations

from copy import copy

from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor

from services.engine.ports import Job, RefusedError
from shared.messages import Prior, RefuseReason


def check_prior(job: Job, vocab_size: int) -> None:
    """Raise `RefusedError` where the tokens said so far are not of this model."""
    for prior in job.prior:
        if prior.token_ids and max(prior.token_ids) >= vocab_size:
            raise RefusedError(
                RefuseReason.INVALID, f"prior has a token beyond the vocabulary of {vocab_size}"
            )


def behind(request: EngineCoreRequest, prior: Prior) -> EngineCoreRequest:
    """Return the request as the core must see it: what was said is read again, and counts as said."""
    said = len(prior.token_ids)
    own = copy(request)
    params = own.sampling_params = copy(request.sampling_params)
    assert params is not None
    assert params.max_tokens is not None
    params.max_tokens -= said
    params.min_tokens = max(0, params.min_tokens - said)
    own.prompt_token_ids = [*(request.prompt_token_ids or ()), *prior.token_ids]
    return own


def catch_up(reader: OutputProcessor, request_id: str, prior: Prior) -> str:
    """Let vLLM's reader of a request know what was said; return text of it that was not delivered, which is none but by a fault."""
    detokenizer = reader.request_states[request_id].detokenizer
    assert detokenizer is not None
    detokenizer.update(prior.token_ids, False)
    text: str = detokenizer.get_next_output_text(finished=False, delta=True)
    return text[prior.chars :]
