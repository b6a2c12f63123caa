"""OTLP over HTTP: gzip, one kept connection, and the statuses that OTLP says to try again."""

from __future__ import annotations

import email.utils
import zlib
from collections.abc import Callable, Mapping

import aiohttp
from aiohttp.typedefs import LooseHeaders

from services.tracer.adapters.otlp_answers import MAX_MESSAGE_CHARS, taken
from services.tracer.ports import Answer, Later, Never
from shared.clock import unix_time_s

RETRY_STATUSES = frozenset({429, 502, 503, 504})
"""OTLP: these only may be tried again."""
GZIP_LEVEL = 3
"""Of 1 to 9: two and more times quicker than 6 for a tenth more bytes."""
GZIP_WBITS = 31
OK = range(200, 300)
MAX_RESPONSE_BYTES = 64 << 10
CONTENT_TYPE = "application/x-protobuf"


def gzip(content: bytes) -> bytes:
    """Return the content, compressed."""
    compressor = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WBITS)
    return compressor.compress(content) + compressor.flush()


def pause_s(retry_after: str, *, unix_s: Callable[[], float] = unix_time_s) -> float | None:
    """Return the seconds that a `Retry-After` asks for, as a number or a date; None where it is neither."""
    number = retry_after.strip()
    if number.isascii() and number.isdigit():
        return float(number)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - unix_s())
    except (ValueError, TypeError, OverflowError):
        return None


class HttpExporter:
    """See `Exporter`. Made inside the running loop."""

    def __init__(self, url: str, *, headers: Mapping[str, str], compress: bool) -> None:
        self._url = url
        self._compress = compress
        own = {"Content-Type": CONTENT_TYPE} | ({"Content-Encoding": "gzip"} if compress else {})
        self._headers: LooseHeaders = {**headers, **own}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1), auto_decompress=True
        )

    async def export(self, request: bytes, *, timeout_s: float) -> Answer:
        """See `Exporter.export`."""
        body = gzip(request) if self._compress else request
        try:
            async with self._session.post(
                self._url,
                data=body,
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
            ) as response:
                said = await response.content.read(MAX_RESPONSE_BYTES)
                return self._answer(response, said, len(body))
        except TimeoutError:
            return Later(f"no answer within {timeout_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Later(str(error) or type(error).__name__)

    def _answer(self, response: aiohttp.ClientResponse, said: bytes, size: int) -> Answer:
        if response.status in OK:
            is_protobuf = response.content_type == CONTENT_TYPE
            return taken(said if is_protobuf else b"", wire_bytes=size)
        why = f"HTTP {response.status}"
        if response.status in RETRY_STATUSES:
            return Later(why, pause_s(response.headers.get("Retry-After", "")))
        text = said.decode(errors="replace")[:MAX_MESSAGE_CHARS] if _is_text(response) else ""
        return Never(f"{why}: {text}" if text else why)

    async def close(self) -> None:
        """See `Exporter.close`."""
        await self._session.close()


def _is_text(response: aiohttp.ClientResponse) -> bool:
    return response.content_type.startswith("text/") or response.content_type.endswith("json")
