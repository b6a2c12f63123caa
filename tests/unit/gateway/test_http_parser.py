"""The request parser: what it takes, what it refuses and how, and that the cut of the bytes into pieces never matters."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.gateway.http.parser import SLICE_BYTES, Phase, Request, RequestParser, RequestRefused
from services.gateway.http.settings import HttpSettings

SMALL = HttpSettings(max_request_line_bytes=64, max_head_bytes=512, max_headers=8)
MAX_BODY_BYTES = 32
HOST = b"Host: a\r\n"


def get(target: bytes = b"/", fields: bytes = HOST, version: bytes = b"1.1") -> bytes:
    return b"GET %b HTTP/%b\r\n%b\r\n" % (target, version, fields)


def post(fields: bytes, body: bytes = b"", version: bytes = b"1.1") -> bytes:
    return b"POST / HTTP/%b\r\n%b%b\r\n%b" % (version, HOST, fields, body)


def read(
    pieces: Iterable[bytes], settings: HttpSettings = SMALL
) -> tuple[list[Request], int | None]:
    """Return what came out: requests, and the status of a refusal."""
    parser = RequestParser(settings, max_body_bytes=MAX_BODY_BYTES)
    status = None
    try:
        for piece in pieces:
            for at in range(0, len(piece), SLICE_BYTES):
                parser.feed(piece[at : at + SLICE_BYTES], now=1.0)
    except RequestRefused as refusal:
        status = refusal.status
    return list(parser.ready), status


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def test_request_comes_out_whole():
    data = post(b"Content-Length: 3\r\nX-A: b\r\n", b"abc")

    (request,), status = read([data])

    assert ("POST", "/", "", b"abc") == (request.method, request.path, request.query, request.body)
    assert "b" == request.headers.get("x-a")
    assert (True, False, 1.0) == (request.keep_alive, request.is_http10, request.received_at)
    assert status is None


CHUNKED = b"Transfer-Encoding: chunked\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize("cut", [lambda data: [data], bytewise], ids=["whole", "bytewise"])
@pytest.mark.parametrize(
    ("data", "bodies"),
    [
        (post(b"Content-Length: 0\r\n"), [b""]),
        (post(b"Content-Length: 3 \r\n", b"abc"), [b"abc"]),
        (post(CHUNKED, b"3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\n\r\n"), [b"abcde"]),
        (post(CHUNKED, b"3\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n") + get(b"/2"), [b"abc", b""]),
        (post(b"Expect: 100-continue\r\nContent-Length: 3\r\n", b"abc"), [b"abc"]),
        (get(b"/1") + get(b"/2") + get(b"/3"), [b"", b"", b""]),
        (b"\r\n\r\n" + get(), [b""]),
        (get(fields=HOST + UPGRADE), [b""]),
        (post(UPGRADE + b"Content-Length: 3\r\n", b"abc") + get(), [b"abc", b""]),
        (
            post(UPGRADE + CHUNKED, b"3\r\nabc\r\n0\r\n\r\n") + get(fields=HOST + UPGRADE) + get(),
            [b"abc", b"", b""],
        ),
        (get(fields=b"Host:\r\n"), [b""]),
        (get(fields=b"", version=b"1.0"), [b""]),
    ],
)
def test_bodies_are_framed(data, bodies, cut):
    requests, status = read(cut(data))

    assert bodies == [request.body for request in requests]
    assert status is None


def test_trailer_is_no_header():
    first, second = read([post(CHUNKED, b"0\r\nX-A: 1\r\nHost: evil\r\n\r\n") + get()])[0]

    assert first.headers.get("x-a") is None
    assert second.headers.get("x-a") is None
    assert "a" == second.headers.get("host")


@pytest.mark.parametrize(
    ("data", "keep_alive"),
    [
        (get(), True),
        (get(fields=HOST + b"Connection: close\r\n"), False),
        (get(fields=HOST + b"Connection: keep-alive, Close\r\n"), False),
        (get(version=b"1.0"), False),
        (get(version=b"1.0", fields=b"Connection: keep-alive\r\n"), True),
        (post(UPGRADE.replace(b"Upgrade,", b"close, Upgrade,"), b""), False),
    ],
)
def test_keep_alive_follows_version_and_connection_field(data, keep_alive):
    (request,), _ = read([data])

    assert keep_alive is request.keep_alive


REFUSED = {
    "garbage": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03", 400),
    "method in lower case": (b"get / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "NUL in method": (b"G\0T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "unknown method": (b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "method not for us": (b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 501),
    "CONNECT": (b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 501),
    "other protocol": (b"DESCRIBE rtsp://a/b RTSP/1.0\r\n\r\n", 501),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HTTP/2.0": (get(version=b"2.0"), 505),
    "HTTP/1.2": (get(version=b"1.2"), 400),
    "HTTP/0.9": (b"GET /\r\n\r\n", 505),
    "no host": (get(fields=b""), 400),
    "two hosts": (get(fields=HOST + HOST), 400),
    "bare LF in request line": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "bare LF in field": (get(fields=b"Host: a\nX: y\r\n"), 400),
    "bare CR in field": (get(fields=b"Host: a\rX: y\r\n"), 400),
    "bare LF at the end": (b"GET / HTTP/1.1\r\nHost: a\r\n\n", 400),
    "folded field": (get(fields=HOST + b"X: y\r\n z\r\n"), 400),
    "space before the first field": (get(fields=b" Host: a\r\n"), 400),
    "space before colon": (get(fields=b"Host : a\r\n"), 400),
    "empty field name": (get(fields=HOST + b": a\r\n"), 400),
    "no colon": (get(fields=HOST + b"abc\r\n"), 400),
    "NUL in field": (get(fields=HOST + b"X: a\0b\r\n"), 400),
    "control character in field": (get(fields=HOST + b"X: a\x01b\r\n"), 400),
    "NUL in target": (get(b"/\0"), 400),
    "bytes over 127 in target": (get("/ä".encode()), 400),
    "path not UTF-8": (get(b"/%ff"), 400),
    "fragment": (get(b"/a#b"), 400),
    "target too long": (get(b"/" + b"a" * 64), 414),
    "too many fields": (get(fields=HOST + b"A: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\nE: 1\r\nF: 1\r\nG: 1\r\nH: 1\r\n"), 431),
    "too many equal fields": (get(fields=HOST + b"A: 1\r\n" * 8), 431),
    "fields too large": (get(fields=HOST + b"A: " + b"x" * 600 + b"\r\n"), 431),
    "endless field": (b"GET / HTTP/1.1\r\nA: " + b"x" * 100_000, 431),
    "endless field name": (b"GET / HTTP/1.1\r\n" + b"x" * 100_000, 431),
    "endless target": (b"GET /" + b"x" * 100_000, 414),
    "CL and TE": (post(b"Content-Length: 3\r\n" + CHUNKED, b"0\r\n\r\n"), 400),
    "TE and CL": (post(CHUNKED + b"Content-Length: 3\r\n", b"0\r\n\r\n"), 400),
    "two lengths": (post(b"Content-Length: 3\r\nContent-Length: 4\r\n", b"abcd"), 400),
    "two equal lengths": (post(b"Content-Length: 3\r\nContent-Length: 3\r\n", b"abc"), 400),
    "list of lengths": (post(b"Content-Length: 3, 3\r\n", b"abc"), 400),
    "signed length": (post(b"Content-Length: +3\r\n", b"abc"), 400),
    "negative length": (post(b"Content-Length: -3\r\n", b"abc"), 400),
    "hexadecimal length": (post(b"Content-Length: 0x3\r\n", b"abc"), 400),
    "empty length": (post(b"Content-Length:\r\n", b"abc"), 400),
    "overflowing length": (post(b"Content-Length: 99999999999999999999\r\n"), 400),
    "body too large by its length": (post(b"Content-Length: 33\r\n"), 413),
    "body too large by its chunks": (post(CHUNKED, b"10\r\n" + b"x" * 16 + b"\r\n11\r\n" + b"x" * 17 + b"\r\n"), 413),
    "unknown coding": (post(b"Transfer-Encoding: gzip\r\n"), 501),
    "two codings": (post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), 501),
    "chunked not last": (post(b"Transfer-Encoding: chunked, gzip\r\n", b"0\r\n\r\n"), 400),
    "chunked twice": (post(CHUNKED + CHUNKED, b"0\r\n\r\n"), 400),
    "disguised chunked": (post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"), 501),
    "chunked in HTTP/1.0": (post(CHUNKED, b"0\r\n\r\n", version=b"1.0"), 400),
    "chunk size not hexadecimal": (post(CHUNKED, b"0x3\r\nabc\r\n0\r\n\r\n"), 400),
    "space after chunk size": (post(CHUNKED, b"3 \r\nabc\r\n0\r\n\r\n"), 400),
    "chunk longer than its size": (post(CHUNKED, b"3\r\nabcdef\r\n0\r\n\r\n"), 400),
    "chunk with bare LF": (post(CHUNKED, b"3\nabc\n0\n\n"), 400),
    "overflowing chunk size": (post(CHUNKED, b"fffffffffffffffff\r\nabc"), 400),
    "endless chunk extension": (post(CHUNKED, b"3;" + b"x" * 100_000), 431),
    "endless trailer": (post(CHUNKED, b"0\r\nA: " + b"x" * 100_000), 431),
    "unknown expectation": (post(b"Expect: 200-ok\r\nContent-Length: 1\r\n", b"a"), 417),
}  # fmt: skip


@pytest.mark.parametrize("cut", [lambda data: [data], bytewise], ids=["whole", "bytewise"])
@pytest.mark.parametrize(("data", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_request_is_refused_before_a_request_comes_of_it(data, status, cut):
    requests, refused = read(cut(data))

    assert [] == requests
    assert status == refused


def test_refusal_keeps_the_good_requests_before_it():
    requests, status = read([get(b"/1") + get(b"/2") + b"\0"])

    assert ["/1", "/2"] == [request.path for request in requests]
    assert 400 == status


def test_two_hundred_fields_of_64_kib_are_taken():
    fields = b"".join(b"X-%03d: %b\r\n" % (at, b"v" * 310) for at in range(199))

    (request,), status = read([get(fields=HOST + fields)], HttpSettings())

    assert status is None
    assert "v" * 310 == request.headers.get("x-198")


def test_continue_is_due_only_until_the_body_comes():
    due = []
    parser = RequestParser(SMALL, max_body_bytes=MAX_BODY_BYTES)
    for piece in (
        post(b"Expect: 100-continue\r\nContent-Length: 3\r\n"),
        b"a",
        b"bc" + post(b"Expect: 100-continue\r\nContent-Length: 0\r\n"),
    ):
        parser.feed(piece, now=1.0)
        due.append(parser.is_continue_due)

    assert [True, False, False] == due


def test_phase_and_times_follow_the_request():
    parser = RequestParser(SMALL, max_body_bytes=MAX_BODY_BYTES)
    assert Phase.BETWEEN is parser.phase
    parser.feed(b"POST / HT", now=5.0)
    assert (Phase.HEAD, 5.0) == (parser.phase, parser.began_at)
    parser.feed(b"TP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na", now=6.0)
    assert (Phase.BODY, 5.0, 1) == (parser.phase, parser.began_at, parser.body_bytes)
    parser.feed(b"bc", now=7.0)
    assert (Phase.BETWEEN, 0) == (parser.phase, parser.body_bytes)


SAMPLES = [data for data, _ in REFUSED.values() if len(data) < 1000] + [
    get() + post(CHUNKED, b"3\r\nabc\r\n0\r\nX: 1\r\n\r\n") + get(b"/2"),
    post(UPGRADE + b"Content-Length: 3\r\n", b"abc") + get(b"/2"),
]


@given(
    st.lists(st.sampled_from(SAMPLES), max_size=3).map(b"".join),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_cut_into_pieces_does_not_matter(data, cuts):
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(edges)]

    requests, status = read(pieces)
    whole, whole_status = read([data])

    assert [(r.method, r.path, r.body) for r in whole] == [
        (r.method, r.path, r.body) for r in requests
    ]
    assert whole_status == status


@given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from(SAMPLES)), max_size=4))
@example([b"OPTIONS * HTTP/1.1\r\n", b"Connection: upgrade\r\nUpgrade: x\r\nHost:\r\n\r\n"])
def test_any_bytes_give_requests_or_a_refusal_and_nothing_else(pieces):
    requests, status = read(pieces)

    assert all(len(request.body) <= 32 for request in requests)
    assert status is None or 400 <= status <= 505
