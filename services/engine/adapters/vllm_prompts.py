"""Prompts of all kinds to token ids, with the tokenizer and the template that vLLM uses for the model.

`/v1/completions` text is tokenized as vLLM does it: special tokens in it count, and the model's start token is added.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer
from vllm.renderers.hf import resolve_chat_template, resolve_chat_template_content_format

from services.engine.adapters.chat_template import reads_tools
from services.engine.adapters.render_frames import Setup, TemplateSetup
from services.engine.adapters.render_pool import RenderPool
from services.engine.ports import EngineFailedError, RefusedError
from services.engine.settings import VllmSettings
from shared.messages import ChatPrompt, Prompt, RefuseReason, TextPrompt, TokensPrompt

_SOME_TOOL = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


class Prompts:
    """Turns prompts into tokens."""

    def __init__(
        self, settings: VllmSettings, pool: RenderPool, *, tokenizer: Any, model_config: Any
    ) -> None:
        """Raise `EngineFailedError` where template or tokenizer can't be used."""
        self._pool = pool
        self.backend_tokenizer = backend_tokenizer(tokenizer)
        self._vocab_size: int = model_config.get_vocab_size()
        templates = [
            _template(settings, tokenizer, model_config, tools) for tools in (None, _SOME_TOOL)
        ]
        self._has_template = templates[0] is not None
        self.shows_tools = templates[1] is not None and reads_tools(templates[1].source)
        """Whether the model gets to see tools at all."""
        self._setup = Setup(
            tokenizer_json=self.backend_tokenizer.to_str(),
            chat=templates[0],
            tools=templates[1],
            variables=_variables(tokenizer),
            timeout_s=settings.template_timeout_s,
        )

    async def load(self) -> None:
        """Let the render processes load the tokenizer. Raises `EngineFailedError`."""
        await self._pool.load(self._setup)

    async def tokens(self, prompt: Prompt) -> list[int]:
        """Return the tokens. Raises `RefusedError`."""
        match prompt:
            case TokensPrompt():
                return self._checked(prompt.token_ids)
            case TextPrompt():
                return await self._pool.text(prompt.text)
            case ChatPrompt():
                return await self._chat(prompt)

    async def _chat(self, prompt: ChatPrompt) -> list[int]:
        if not self._has_template:
            raise RefusedError(
                RefuseReason.UNSUPPORTED,
                "the model has no chat template: use /v1/completions, or set vllm.chat_template",
                param="messages",
            )
        return await self._pool.chat(prompt.messages_json, self._shown_tools(prompt))

    def _shown_tools(self, prompt: ChatPrompt) -> bytes | None:
        """Return the tools that the model gets to see: none where it must not call any; a template without tools shows none."""
        if prompt.tool_choice == "none" or not self.shows_tools:
            return None
        return prompt.tools_json

    def _checked(self, token_ids: list[int]) -> list[int]:
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self._vocab_size:
            raise RefusedError(
                RefuseReason.INVALID, f"tokens must be 0 to {self._vocab_size - 1}", param="prompt"
            )
        return token_ids


def backend_tokenizer(tokenizer: Any) -> Tokenizer:
    """Return the inner tokenizer. Raises `EngineFailedError` where it is of a kind that could make control tokens of user text."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(inner, Tokenizer):
        raise EngineFailedError(
            f"the model's tokenizer ({type(tokenizer).__name__}) is not one of the `tokenizers` library;"
            " such models can't be served, add a tokenizer.json"
        )
    return inner


def _template(
    settings: VllmSettings, tokenizer: Any, model_config: Any, tools: list[Any] | None
) -> TemplateSetup | None:
    """Return the template that vLLM would choose."""
    own = _own_template(settings)
    source = resolve_chat_template(tokenizer, own, tools, model_config=model_config)
    if source is None:
        return None
    try:
        reads_tools(source)
    except jinja2.TemplateError as error:
        raise EngineFailedError(f"the chat template is broken: {error}") from error
    content_format = resolve_chat_template_content_format(
        own, tools, "auto", tokenizer, model_config=model_config
    )
    return TemplateSetup(source, content_format)


def _own_template(settings: VllmSettings) -> str | None:
    if settings.chat_template is None:
        return None
    try:
        return Path(settings.chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EngineFailedError(f"vllm.chat_template: {error}") from error


def _variables(tokenizer: Any) -> dict[str, Any]:
    return {
        name: [str(item) for item in value] if isinstance(value, list) else str(value)
        for name, value in tokenizer.special_tokens_map.items()
    }
