"""Splits a request target into decoded path and raw query. Pure. Does not resolve `.` or `..`: paths are names here, not files."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ABSOLUTE = re.compile(rb"https?://[^/?#]+", re.IGNORECASE)


class BadTarget(ValueError):
    """The request target cannot be understood; the message says why."""


def split_target(target: bytes) -> tuple[str, str]:
    """Return path (percent-decoded, UTF-8) and query (as sent) of an origin-form, absolute-form or `*` target."""
    if b"#" in target:
        raise BadTarget("a fragment (#) does not belong into a request")
    if not target.startswith(b"/"):
        target = _origin_form(target)
    raw_path, _, query = target.partition(b"?")
    return _decode_path(raw_path), query.decode("ascii")


def _origin_form(target: bytes) -> bytes:
    if target == b"*":
        return target
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        raise BadTarget("the target must begin with / or http://")
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def _decode_path(raw: bytes) -> str:
    if b"%" not in raw:
        return raw.decode("ascii")
    if _BAD_ESCAPE.search(raw):
        raise BadTarget("the path has a % without two hexadecimal digits")
    try:
        path = unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise BadTarget("the path is not UTF-8") from None
    if _CONTROL.search(path):
        raise BadTarget("the path has an encoded control character")
    return path
