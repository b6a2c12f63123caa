"""Tool calls that a model makes of its own will: vLLM's parser for the model's format finds them in the text."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser import ParserManager
from vllm.sampling_params import StructuredOutputsParams

from services.engine.adapters.tool_calls import Listener, Said, new_call_id
from services.engine.ports import EngineFailedError, RefusedError
from shared.messages import ChatPrompt, RefuseReason, ToolCallDelta


class ToolParser:
    """vLLM's parser of one model's format."""

    def __init__(self, name: str, tokenizer: Any) -> None:
        """Raise `EngineFailedError` where there is no such parser, or it does not go with the tokenizer."""
        self._tokenizer = tokenizer
        try:
            self._parser = ParserManager.get_parser(
                tool_parser_name=name, enable_auto_tools=True, tokenizer=tokenizer
            )
        except (
            Exception
        ) as error:  # a parser may raise anything on a tokenizer that lacks its tokens
            raise EngineFailedError(f"vllm.tool_call_parser {name!r}: {error}") from error

    def chosen(self, prompt: ChatPrompt) -> ChosenCalls:
        """Return how to generate and read an answer in which the model may call tools. Raises `RefusedError`."""
        assert self._parser is not None
        try:
            request = ChatCompletionRequest(
                messages=[],
                tools=msgspec.json.decode(prompt.tools_json or b"[]"),
                tool_choice="auto",
                parallel_tool_calls=prompt.parallel_tool_calls,
            )
            parser = self._parser(self._tokenizer, request.tools)
            return ChosenCalls(self._parser, self._tokenizer, parser.adjust_request(request))
        except (ValidationError, ValueError) as error:
            raise RefusedError(
                RefuseReason.INVALID, f"the tools are not what vLLM takes: {error}", param="tools"
            ) from error


class ChosenCalls:
    """How to generate and read one answer."""

    def __init__(self, parser: type[Any], tokenizer: Any, request: Any) -> None:
        self._parser = parser
        self._tokenizer = tokenizer
        self._request = request

    @property
    def structured(self) -> StructuredOutputsParams | None:
        """Grammar that the parser wants, if any."""
        grammar: StructuredOutputsParams | None = self._request.structured_outputs
        return grammar

    @property
    def skip_special_tokens(self) -> bool:
        """Whether special tokens are left out of the text; some formats are made of them."""
        return bool(self._request.skip_special_tokens)

    def listener(self) -> Listener:
        """Return one for a choice."""
        return _Parsed(self._parser(self._tokenizer, self._request.tools), self._request)


class _Parsed:
    """One choice's text through vLLM's parser."""

    def __init__(self, parser: Any, request: Any) -> None:
        self._parser = parser
        self._request = request
        self._ids: dict[int, str] = {}

    def hear(self, text: str, token_ids: list[int], *, is_last: bool) -> Said:
        """Return what the parser makes of the text."""
        delta = self._parser.parse_delta(
            text, token_ids, self._request, prompt_token_ids=[], finished=is_last
        )
        if delta is None:
            return Said("", [])
        return Said(delta.content or "", [self._call(call) for call in delta.tool_calls or ()])

    def _call(self, call: Any) -> ToolCallDelta:
        name = call.function.name if call.function else None
        is_new = name is not None and call.index not in self._ids
        if is_new:
            self._ids[call.index] = new_call_id()
        return ToolCallDelta(
            index=call.index,
            id=self._ids[call.index] if is_new else None,
            name=name if is_new else None,
            arguments=(call.function.arguments if call.function else None) or "",
        )
