"""The OpenAPI 3.1 document of the HTTP door, made from the structs that decode requests and encode answers, so that it cannot drift."""

from __future__ import annotations

from typing import Any

import msgspec

from services.gateway.openai import responses, unsupported
from services.gateway.openai.chat import ChatBody
from services.gateway.openai.completion import DEFAULT_MAX_TOKENS, CompletionBody
from services.gateway.openai.headers import HTTP_HEADERS, MIN_TIMEOUT_S
from services.gateway.openai.limits import RequestLimits
from shared.messages import Priority

Json = dict[str, Any]

ERRORS = {
    "400": "The request must be changed; `param` names the field.",
    "401": "The API key is missing or unknown.",
    "403": "Pages of this web origin may not use the gateway.",
    "404": "There is no such model or path.",
    "408": "The request took too long to arrive.",
    "413": "The request is too large.",
    "415": "The body's content type cannot be JSON.",
    "429": "Too many requests for this class of service now; `Retry-After` says when to try again.",
    "500": "A defect of the gateway.",
    "503": "No engine can take the request now; `Retry-After` says when to try again.",
    "504": "The answer was not complete within the request's timeout.",
}
"""Every status that an endpoint of the API may answer with, beside success."""

_RETRY = ("429", "503")
_STREAM_NOTE = (
    "With `stream: true`: one chunk in each `data:` event, and `data: [DONE]` after a whole answer. "
    "A stream that fails ends with an event that holds an `error` object, and without `[DONE]`."
)


def document(*, version: str, limits: RequestLimits) -> bytes:
    """Return the document as JSON."""
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Headrace gateway",
                "version": version,
                "description": "OpenAI's chat and completion API, with vLLM's sampling fields. "
                "Fields that would change the answer and are not supported are refused by name.",
            },
            "security": [{}, {"apiKey": []}],
            "paths": _paths(limits),
            "components": {
                "schemas": _schemas(limits),
                "responses": {status: _error(status) for status in ERRORS},
                "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def field_notes(limits: RequestLimits) -> dict[str, str]:
    """Return what types do not say about request fields, by field name."""
    return {
        "temperature": "0 is greedy. Absent: the model's own default, as for every sampling field.",
        "top_k": "0 or -1: no limit.",
        "n": f"At most {limits.max_n} for a prompt, {limits.max_choices} in all.",
        "max_tokens": "Absent: up to the context length in chat, "
        f"{DEFAULT_MAX_TOKENS} in completions.",
        "max_completion_tokens": "The same as `max_tokens`; where both are given they must agree.",
        "messages": f"At most {limits.max_messages}. Text parts are joined by line breaks.",
        "prompt": f"A string, or an array of strings, of token ids, or of arrays of token ids; "
        f"at most {limits.max_prompts} prompts.",
        "stop": f"At most {limits.max_stop} strings of 1 to {limits.max_stop_chars} characters. "
        "The answer ends before the stop string.",
        "stop_token_ids": f"At most {limits.max_stop_token_ids}.",
        "seed": "Absent: a random one.",
        "logprobs": f"Chat: whether to return them. Completions: how many alternatives, "
        f"at most {limits.max_logprobs}.",
        "top_logprobs": f"Alternatives at each position, at most {limits.max_logprobs}; "
        "needs `logprobs`.",
        "logit_bias": f"Token id → bias; at most {limits.max_logit_bias} entries.",
        "tools": f"At most {limits.max_tools}; an empty list is the same as none.",
        "tool_choice": "Needs `tools`, except for `none`.",
        "stream_options": "Only with `stream`.",
        "service_tier": "Class of service: `priority` and `fast` are interactive, `flex` and "
        "`batch` are batch, `auto` is the API key's or the default. The header beats it.",
        "user": "A label; no effect on the answer.",
        "safety_identifier": "A label, used where `user` is absent; no effect on the answer.",
        "prompt_cache_key": "A label; no effect on the answer.",
        "best_of": "Every candidate is returned, so it may only repeat `n`.",
    }


def field_bounds(limits: RequestLimits) -> dict[str, dict[str, Json]]:
    """Return the bounds of request fields that are settings, by field name and JSON type."""
    label = {"string": {"maxLength": limits.max_label_chars}}
    alternatives = {"integer": {"maximum": limits.max_logprobs}}
    return {
        "n": {"integer": {"maximum": limits.max_n}},
        "messages": {"array": {"minItems": 1, "maxItems": limits.max_messages}},
        "prompt": {"array": {"minItems": 1}},
        "stop": {
            "string": {"minLength": 1, "maxLength": limits.max_stop_chars},
            "array": {"maxItems": limits.max_stop},
        },
        "stop_token_ids": {"array": {"maxItems": limits.max_stop_token_ids}},
        "logit_bias": {"object": {"maxProperties": limits.max_logit_bias}},
        "logprobs": alternatives,
        "top_logprobs": alternatives,
        "tools": {"array": {"maxItems": limits.max_tools}},
        "best_of": {"integer": {"minimum": 1, "maximum": limits.max_n}},
        "model": label,
        "user": label,
        "safety_identifier": label,
        "prompt_cache_key": label,
    }


def _paths(limits: RequestLimits) -> Json:
    return {
        "/v1/chat/completions": {
            "post": _generation("createChatCompletion", "Answer a conversation.", limits)
            | _bodies("ChatBody", "ChatCompletion", "ChatCompletionChunk")
        },
        "/v1/completions": {
            "post": _generation("createCompletion", "Continue a text.", limits)
            | _bodies("CompletionBody", "Completion", "Completion")
        },
        "/v1/models": {
            "get": _read("listModels", "List the models that can be asked for.", _json("ModelList"))
        },
        "/v1/models/{id}": {
            "get": _read("retrieveModel", "Describe a model.", _json("Model"))
            | {
                "parameters": [
                    {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
                ]
            }
        },
        "/health": {"get": _probe("health", "Whether the gateway lives.", failing=False)},
        "/ready": {"get": _probe("ready", "Whether requests can be served now.", failing=True)},
        "/metrics": {"get": _open("metrics", "Metrics for Prometheus.", "text/plain")},
        "/openapi.json": {"get": _open("openapi", "This document.", "application/json")},
    }


def _generation(operation: str, summary: str, limits: RequestLimits) -> Json:
    return {
        "operationId": operation,
        "summary": summary,
        "parameters": [
            _header(
                HTTP_HEADERS.shown_priority,
                {"type": "string", "enum": list(Priority)},
                "Class of service; beats `service_tier`.",
            ),
            _header(
                HTTP_HEADERS.shown_timeout,
                {"type": "number", "minimum": MIN_TIMEOUT_S, "maximum": limits.max_timeout_s},
                "Seconds for the whole answer.",
            ),
            _header(
                "X-Request-Id",
                {"type": "string"},
                "The caller's own label of the request; comes back in the answer's headers.",
            ),
            _header(
                "X-Headrace-Timing",
                {"type": "string", "enum": ["1"]},
                "Asks where the time went: a `Server-Timing` header, in streams a comment before the last event.",
            ),
            _header("traceparent", {"type": "string"}, "W3C trace context."),
            _header("tracestate", {"type": "string"}, "W3C trace context."),
        ],
    }


def _bodies(request: str, answer: str, chunk: str) -> Json:
    content = _json(answer) | {
        "text/event-stream": {"schema": _events(chunk)},
    }
    return {
        "requestBody": {"required": True, "content": _json(request)},
        "responses": {"200": {"description": f"The answer. {_STREAM_NOTE}", "content": content}}
        | _errors(*ERRORS),
    }


def _events(chunk: str) -> Json:
    """Return one event of a stream: a chunk as JSON, at the end of a broken stream an error, and `[DONE]` after a whole one."""
    told = {"anyOf": [_ref(chunk), _ref("ErrorBody")]}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": told}
    return {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, data]}},
    }


def _read(operation: str, summary: str, content: Json) -> Json:
    return {
        "operationId": operation,
        "summary": summary,
        "responses": {"200": {"description": summary, "content": content}}
        | _errors("400", "401", "404", "500"),
    }


def _probe(operation: str, summary: str, *, failing: bool) -> Json:
    content = {"application/json": {"schema": {"type": "object"}}}
    answers: Json = {"200": {"description": "Yes.", "content": content}}
    if failing:
        answers["503"] = {"description": "Not now; `reason` says why.", "content": content}
    return {"operationId": operation, "summary": summary, "security": [], "responses": answers}


def _open(operation: str, summary: str, content_type: str) -> Json:
    return {
        "operationId": operation,
        "summary": summary,
        "security": [],
        "responses": {"200": {"description": summary, "content": {content_type: {}}}},
    }


def _header(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "header", "schema": schema, "description": description}


def _errors(*statuses: str) -> Json:
    return {status: {"$ref": f"#/components/responses/{status}"} for status in statuses}


def _error(status: str) -> Json:
    answer: Json = {"description": ERRORS[status], "content": _json("ErrorBody")}
    if status in _RETRY:
        answer["headers"] = {
            "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}
        }
    return answer


def _json(name: str) -> Json:
    return {"application/json": {"schema": _ref(name)}}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas(limits: RequestLimits) -> Json:
    _, schemas = msgspec.json.schema_components(
        [
            ChatBody,
            CompletionBody,
            responses.ChatCompletion,
            responses.ChatCompletionChunk,
            responses.Completion,
            responses.ModelList,
            responses.ErrorBody,
        ],
        ref_template="#/components/schemas/{name}",
    )
    tables = {"ChatBody": unsupported.CHAT, "CompletionBody": unsupported.COMPLETION}
    notes, bounds = field_notes(limits), field_bounds(limits)
    for name, table in tables.items():
        fields = schemas[name]["properties"]
        for note in fields.keys() & notes.keys():
            fields[note]["description"] = notes[note]
        for bound in fields.keys() & bounds.keys():
            for schema in (fields[bound], *fields[bound].get("anyOf", ())):
                schema.update(bounds[bound].get(schema.get("type"), {}))
        for field, entry in table.items():
            fields[field] = {
                "description": f"Not supported: {entry.reason}.",
                "enum": [None, *entry.harmless],
            }
    return schemas
