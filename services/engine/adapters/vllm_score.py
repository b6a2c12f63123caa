"""An engine that can also say how likely given tokens are, and what else could have stood in their places."""

from __future__ import annotations

from typing import Any

from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.v1.engine.exceptions import EngineDeadError

from services.engine.adapters.vllm_engine import VllmEngine
from services.engine.adapters.vllm_outputs import finite
from services.engine.adapters.vllm_sampling import refusal_of
from services.engine.ports import EngineFailedError
from shared.messages import Prompt
from shared.models.probe import Option, Position


class ScoringEngine(VllmEngine):
    """One score at a time."""

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return self._abilities.vocab_size

    async def tokens(self, prompt: Prompt) -> list[int]:
        """Return a prompt's tokens. Raises `RefusedError`."""
        assert self._prompts is not None
        return await self._prompts.tokens(prompt)

    async def score(self, token_ids: list[int], *, top: int) -> list[Position]:
        """Return what the model thinks of each token but the first. Raises `RefusedError`, `EngineFailedError`."""
        assert self._llm is not None
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=top)
        places: list[dict[int, Any] | None] = []
        try:
            async for output in self._llm.generate(tokens_input(token_ids), params, "score"):
                places = output.prompt_logprobs or places
        except EngineDeadError as error:
            raise EngineFailedError("the engine core died") from error
        except (VLLMClientError, ValueError) as error:
            raise refusal_of(error) from error
        return [
            _position(token_id, place, top)
            for token_id, place in zip(token_ids[1:], places[1:], strict=True)
            if place is not None
        ]


def _position(token_id: int, place: dict[int, Any], top: int) -> Position:
    ranked = sorted(place.items(), key=lambda item: item[1].rank)[:top]
    return Position(
        _option(token_id, place[token_id]), [_option(number, each) for number, each in ranked]
    )


def _option(token_id: int, told: Any) -> Option:
    return Option(token_id, told.decoded_token or "", finite(told.logprob))
