"""Header fields of requests, and heads of responses."""

from __future__ import annotations

import re

import pytest

from services.gateway.http.headers import SINGLE, DuplicateHeader, Headers
from services.gateway.http.heads import BadHeader, Heads, chunk, connection_line


def headers_of(*pairs: tuple[bytes, bytes]) -> Headers:
    return Headers(pairs)


def test_name_is_found_in_any_case():
    headers = headers_of((b"X-Priority", b"batch"))

    assert "batch" == headers.get("x-PRIORITY")
    assert headers.get("x-other") is None
    assert headers.get("x-模") is None


def test_repeated_field_is_joined():
    headers = headers_of(
        (b"Accept", b"a"), (b"accept", b"b "), (b"Cookie", b"c=1"), (b"cookie", b"d=2")
    )

    assert "a, b" == headers.get("accept")
    assert "c=1; d=2" == headers.get("cookie")
    assert [("accept", "a, b"), ("cookie", "c=1; d=2")] == list(headers.items())


@pytest.mark.parametrize("name", sorted(SINGLE))
def test_field_that_must_be_single_is_refused_twice(name):
    with pytest.raises(DuplicateHeader, match=name.decode()):
        headers_of((name, b"1"), (name.upper(), b"1"))


def test_any_bytes_of_a_value_decode():
    assert "\xff\xe4" == headers_of((b"a", b"\xff\xe4")).get("a")


def test_repr_does_not_show_values():
    assert "Headers(authorization)" == repr(headers_of((b"Authorization", b"Bearer sk-1")))


def test_head_is_complete():
    head = Heads().build(200, "application/json", "content-length: 2\r\n", [("x-id", "1")])

    pattern = (
        rb"HTTP/1\.1 200 OK\r\ndate: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r\nserver: headrace\r\n"
        rb"content-type: application/json\r\ncontent-length: 2\r\nx-id: 1\r\n\r\n"
    )
    assert re.fullmatch(pattern, head)


def test_unknown_status_has_no_phrase():
    assert Heads().build(499, "", "", ()).startswith(b"HTTP/1.1 499 \r\n")


@pytest.mark.parametrize("value", ["a\r\nset-cookie: b", "a\nb", "a\rb", "a\0b", "\r\n\r\n<html>"])
def test_header_that_would_split_the_response_is_refused(value):
    with pytest.raises(BadHeader):
        Heads().build(200, "", "", [("x-id", value)])


def test_header_outside_latin_1_is_refused():
    with pytest.raises(ValueError, match="latin-1"):
        Heads().build(200, "", "", [("x-id", "模")])


@pytest.mark.parametrize(
    ("keep_alive", "is_http10", "line"),
    [
        (True, False, ""),
        (True, True, "connection: keep-alive\r\n"),
        (False, False, "connection: close\r\n"),
        (False, True, "connection: close\r\n"),
    ],
)
def test_connection_line_says_what_the_version_does_not_imply(keep_alive, is_http10, line):
    assert line == connection_line(keep_alive=keep_alive, is_http10=is_http10)


def test_chunk_is_framed():
    assert b"1a\r\n" + b"x" * 26 + b"\r\n" == chunk(b"x" * 26)
