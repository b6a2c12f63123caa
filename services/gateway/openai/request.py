"""What both kinds of request share: decoding, the sampling fields, and their checks.

Ranges that never change stand in the types, so that they are in the OpenAPI document too; those of `RequestLimits` are checked here.
Strings may hold any Unicode scalar value, NUL too, since models read text; labels must be printable, since they reach logs and headers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from services.gateway.call import invalid
from services.gateway.openai.limits import RequestLimits
from services.gateway.openai.refusal import body_too_large, from_validation, malformed
from services.gateway.openai.tools import FunctionName, Schema, check_schema
from shared.messages import Priority, Sampling
from shared.spec.model import SamplingConfig

INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1

Count = Annotated[int, Meta(ge=1, le=INT32_MAX)]
TokenId = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Bias = Annotated[float, Meta(ge=-100.0, le=100.0)]

_TIERS = {
    "default": Priority.DEFAULT,
    "priority": Priority.INTERACTIVE,
    "fast": Priority.INTERACTIVE,
    "flex": Priority.BATCH,
    "batch": Priority.BATCH,
}
"""`auto` is absent: it leaves the class to the API key, else to the default."""

_encode = msgspec.json.Encoder().encode
_NOTHING = SamplingConfig()


def no_defaults(_: str) -> SamplingConfig:
    """Return the defaults of a service that nobody declared: none."""
    return _NOTHING


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a streamed answer; only `include_usage` can be switched on."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class TextFormat(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"
):
    """One JSON object."""


class JsonSchema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON Schema of an answer; it is always enforced, so `strict` changes nothing."""

    name: FunctionName
    description: str | None = None
    schema: Schema
    strict: bool | None = None


class JsonSchemaFormat(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"
):
    """JSON that matches a schema."""

    json_schema: JsonSchema


class CommonBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of both kinds of request. An explicit `null` is the same as an absent field."""

    model: Annotated[str, Meta(min_length=1)]
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    n: Count | None = None
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=INT32_MAX)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=INT64_MAX)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=2.0)] | None = None
    logit_bias: dict[TokenId, Bias] | None = None
    ignore_eos: bool | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: Literal["auto", "default", "priority", "fast", "flex", "batch"] | None = None
    user: str | None = None


Body = TypeVar("Body", bound=CommonBody)


def decode(decoder: msgspec.json.Decoder[Body], body: bytes, limits: RequestLimits) -> Body:
    """Return the request in `body`, its types and fixed ranges checked. Raises `ApiError`."""
    if len(body) > limits.max_body_bytes:
        raise body_too_large(limits)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise from_validation(error, decoder.type.__struct_fields__) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise malformed(error) from error


def _no_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("an object has the same key twice")


_scan = json.JSONDecoder(object_pairs_hook=_no_duplicates).raw_decode


def refuse_duplicate_keys(body: bytes) -> None:
    """Raise where an object has a key twice: readers differ in which one they take, so a filter before us may have seen another request.

    The typed decoder takes the last one without a word, hence a second pass (10 µs for a short request, 2 ms for half a megabyte).
    It comes last, when the request is known to be of bounded size in all its parts.
    """
    try:
        text = body.decode()
        _scan(text, text.index("{"))
    except (ValueError, RecursionError) as error:
        raise malformed(error) from error


def check_common(body: CommonBody, limits: RequestLimits, *, prompts: int) -> None:
    """Refuse what types cannot say."""
    check_label(body.model, limits, param="model")
    check_label(body.user, limits, param="user")
    if body.n is not None and body.n > limits.max_n:
        raise invalid(f"`n` is {body.n}; at most {limits.max_n}.", param="n")
    choices = prompts * (body.n or 1)
    if choices > limits.max_choices:
        raise invalid(
            f"`n` × prompts are {choices} choices; at most {limits.max_choices}.", param="n"
        )
    if body.stream_options is not None:
        _check_stream_options(body.stream_options, stream=bool(body.stream))


def _check_stream_options(options: StreamOptions, *, stream: bool) -> None:
    if not stream:
        raise invalid("`stream_options` is only allowed with `stream`.", param="stream_options")
    for name in ("include_obfuscation", "continuous_usage_stats"):
        if getattr(options, name):
            param = f"stream_options.{name}"
            raise invalid(f"`{param}` is not supported.", param=param, code="unsupported_parameter")


def check_label(label: str | None, limits: RequestLimits, *, param: str) -> None:
    """Refuse a label that is too long for logs or would garble them."""
    if label is None or (len(label) <= limits.max_label_chars and label.isprintable()):
        return
    raise invalid(
        f"`{param}` must be printable and at most {limits.max_label_chars} characters long.",
        param=param,
    )


class Own(NamedTuple):
    """What a request that does not say gets."""

    seed: int
    """A random one."""
    defaults: Callable[[str], SamplingConfig] = no_defaults
    """What a model's service was declared with."""


def sampling(
    body: CommonBody,
    limits: RequestLimits,
    *,
    own: Own,
    max_tokens: int | None,
    logprobs: int | None,
) -> Sampling:
    """Return how to sample. `max_tokens`, `logprobs`: as the kind of request names them."""
    given = own.defaults(body.model)
    max_tokens = given.max_tokens if max_tokens is None else max_tokens
    min_tokens = body.min_tokens or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid(
            f"`min_tokens` is {min_tokens}, more than the {max_tokens} tokens allowed.",
            param="min_tokens",
        )
    json_object, json_schema = _format(body, limits)
    return Sampling(
        temperature=_first(body.temperature, given.temperature),
        top_p=_first(body.top_p, given.top_p),
        top_k=_first(body.top_k, given.top_k),
        min_p=_first(body.min_p, given.min_p),
        n=body.n or 1,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=given.stop if body.stop is None else _stop(body.stop, limits),
        stop_token_ids=_bounded(body.stop_token_ids, limits.max_stop_token_ids, "stop_token_ids"),
        seed=own.seed if body.seed is None else body.seed,
        logprobs=logprobs,
        presence_penalty=_first(body.presence_penalty, given.presence_penalty) or 0.0,
        frequency_penalty=_first(body.frequency_penalty, given.frequency_penalty) or 0.0,
        repetition_penalty=_first(body.repetition_penalty, given.repetition_penalty),
        logit_bias=_logit_bias(body.logit_bias, limits),
        ignore_eos=bool(body.ignore_eos),
        json_object=json_object,
        json_schema=json_schema,
    )


def check_logprobs(count: int | None, limits: RequestLimits, *, param: str) -> int | None:
    """Return the number of alternatives, refused where it is too high."""
    if count is not None and count > limits.max_logprobs:
        raise invalid(f"`{param}` is {count}; at most {limits.max_logprobs}.", param=param)
    return count


def priority(body: CommonBody) -> Priority | None:
    """Return the class that `service_tier` asks for."""
    return _TIERS.get(body.service_tier) if body.service_tier else None


def _stop(stop: str | list[str] | None, limits: RequestLimits) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    for text in _bounded(stops, limits.max_stop, "stop"):
        if not 1 <= len(text) <= limits.max_stop_chars:
            raise invalid(
                f"a `stop` string has {len(text)} characters; it needs 1 to {limits.max_stop_chars}.",
                param="stop",
            )
    return tuple(stops)


Item = TypeVar("Item")


def _first(own: Item | None, default: Item | None) -> Item | None:
    """Return what the request says, else the service's default."""
    return default if own is None else own


def _bounded(items: list[Item] | None, bound: int, param: str) -> tuple[Item, ...]:
    if items is None:
        return ()
    if len(items) > bound:
        raise invalid(f"`{param}` has {len(items)} entries; at most {bound}.", param=param)
    return tuple(items)


def _logit_bias(bias: dict[int, float] | None, limits: RequestLimits) -> dict[int, float] | None:
    if not bias:
        return None
    if len(bias) > limits.max_logit_bias:
        raise invalid(
            f"`logit_bias` has {len(bias)} entries; at most {limits.max_logit_bias}.",
            param="logit_bias",
        )
    return bias


def _format(body: CommonBody, limits: RequestLimits) -> tuple[bool, bytes | None]:
    match body.response_format:
        case None | TextFormat():
            return False, None
        case JsonObjectFormat():
            return True, None
        case JsonSchemaFormat(json_schema):
            param = "response_format.json_schema.schema"
            encoded = check_schema(json_schema.schema, limits, limits.max_schema_bytes, param=param)
            return False, encoded
