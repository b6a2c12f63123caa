"""Turns the JSON decoder's complaints into OpenAI's error object: says which field is wrong, and what it may be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import msgspec

from services.gateway.call import ApiError, invalid
from services.gateway.openai.limits import RequestLimits

MAX_ECHO_CHARS = 64
"""How much of a client's own text comes back in a message."""

_PLACE = re.compile(r"(?P<key>`key` in )?`\$\.?(?P<path>.*)`", re.DOTALL)
_FIELD = re.compile(
    r"Object (?P<kind>contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL
)
_REGEX = re.compile(r" matching regex .*", re.DOTALL)
_INVALID_VALUE = re.compile(r"Invalid (?:enum )?value (?P<value>.*)", re.DOTALL)

_ALLOWED = (
    (
        re.compile(r".*(function|json_schema)\.name"),
        "names have 1 to 64 letters, digits, _ and -",
    ),
    (
        re.compile(r"messages\[\d+\]\.name"),
        "names have up to 64 characters, no space and none of < | \\ / >",
    ),
    (
        re.compile(r"messages\[\d+\]\.role"),
        "roles are system, developer, user, assistant and tool",
    ),
    (
        re.compile(r"messages\[\d+\]\.content\[\d+\]\.type"),
        "content parts of type text are supported, images, audio and files are not",
    ),
    (re.compile(r".*\.tool_calls\[\d+\]\.type|tools\[\d+\]\.type"), "only functions are supported"),
    (
        re.compile(r"tool_choice(\.type)?"),
        'it may be none, auto, required or {"type": "function", "function": {"name": …}}',
    ),
    (re.compile(r"response_format\.type"), "formats are text, json_object and json_schema"),
    (
        re.compile(r"service_tier"),
        "tiers are auto, default, priority, fast, flex and batch",
    ),
)


def echo(text: str) -> str:
    """Return a client's text, cut to what an error message should repeat."""
    return text if len(text) <= MAX_ECHO_CHARS else text[:MAX_ECHO_CHARS] + "…"


def body_too_large(limits: RequestLimits) -> ApiError:
    """Return the refusal of a body beyond the bound, whoever notices it."""
    return ApiError(
        413,
        f"The body exceeds {limits.max_body_bytes} bytes, the most that is taken.",
        kind="invalid_request_error",
        code="request_too_large",
    )


def malformed(error: Exception) -> ApiError:
    """Return the refusal of a body that is not JSON."""
    return invalid(f"The body is not valid JSON: {echo(str(error))}.", code="invalid_json")


def from_validation(error: msgspec.ValidationError, known_fields: Iterable[str]) -> ApiError:
    """Return the refusal of a body that is JSON but not a valid request."""
    what, _, where = str(error).rpartition(" - at ")
    place = _PLACE.fullmatch(where)
    if place is None:
        what = str(error)
    path = _dotted(place["path"]) if place else ""
    field = _FIELD.fullmatch(what)
    if field is not None:
        return _wrong_field(field["kind"], field["name"], path=path, known_fields=known_fields)
    if not path:
        return invalid(f"The body must be a JSON object: {_plain(what)}.")
    if place and place["key"]:
        what = f"in a key, {what[0].lower()}{what[1:]}"
    return invalid(f"Invalid `{path}`: {_explain(what, path)}.", param=path)


def _wrong_field(kind: str, name: str, *, path: str, known_fields: Iterable[str]) -> ApiError:
    param = echo(f"{path}.{name}" if path else name)
    if kind == "missing required":
        return invalid(f"Missing required parameter: `{param}`.", param=param)
    near = [] if path else difflib.get_close_matches(echo(name), known_fields, n=1)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    return invalid(
        f"unrecognized request argument supplied: {param}.{hint}",
        param=param,
        code="unknown_parameter",
    )


def _explain(what: str, path: str) -> str:
    value = _INVALID_VALUE.fullmatch(what)
    allowed = next((text for pattern, text in _ALLOWED if pattern.fullmatch(path)), None)
    if value is not None:
        return f"{echo(value['value'])} is not supported" + (f"; {allowed}" if allowed else "")
    return _plain(what) + (f"; {allowed}" if allowed else "")


def _plain(what: str) -> str:
    what = _REGEX.sub(" of another form", what)
    return what.replace(" | null`", "`").replace("Expected", "expected").replace("`", "")


def _dotted(path: str) -> str:
    """`messages[1].content` as it is; a key of a map is the caller's text and left out."""
    return echo(path.replace("[...]", ""))
