"""Request targets: what becomes of paths and queries, and what is refused."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.http.target import BadTarget, split_target


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", ""),
        (b"/v1/models?limit=2&a=%20", "/v1/models", "limit=2&a=%20"),
        (b"/v1/models/org%2Fname", "/v1/models/org/name", ""),
        (b"/a%20b/%E6%A8%A1", "/a b/模", ""),
        (b"/?", "/", ""),
        (b"/a?b?c", "/a", "b?c"),
        (b"//a/../b", "//a/../b", ""),
        (b"*", "*", ""),
        (b"http://host/v1?x", "/v1", "x"),
        (b"HTTPS://user@host:8443/v1", "/v1", ""),
        (b"http://host", "/", ""),
        (b"http://host?x=/y", "/", "x=/y"),
    ],
)
def test_path_is_decoded_and_query_left_as_sent(target, path, query):
    assert (path, query) == split_target(target)


@pytest.mark.parametrize(
    "target",
    [
        b"/a#b",
        b"/%",
        b"/%2",
        b"/%zz",
        b"/%ff",
        b"/%C3",
        b"/%00",
        b"/a%0d%0ab",
        b"/%7f",
        b"ftp://h/",
        b"host:443",
        b"http://",
        b"http:///x",
    ],
)
def test_ambiguous_or_broken_target_is_refused(target):
    with pytest.raises(BadTarget):
        split_target(target)


@given(st.text(st.characters(exclude_categories=("Cc", "Cs"))))
def test_every_quoted_text_comes_back(text):
    assert ("/" + text, "q=1") == split_target(b"/" + quote(text, safe="/").encode() + b"?q=1")
