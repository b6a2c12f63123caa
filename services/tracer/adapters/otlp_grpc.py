"""OTLP over gRPC: our bytes as they are, no generated classes, and the statuses that OTLP says to try again."""

from __future__ import annotations

from collections.abc import Mapping

import grpc
import grpc.aio

from services.tracer.adapters.otlp_answers import MAX_MESSAGE_CHARS, retry_after_s, taken
from services.tracer.ports import Answer, Later, Never

METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
RETRY_CODES = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
STATUS_DETAILS = "grpc-status-details-bin"
OPTIONS = (
    # A collector that comes back is tried as soon as we try, not when gRPC's own pause of up to two minutes is over.
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class GrpcExporter:
    """See `Exporter`. Made inside the running loop."""

    def __init__(
        self, target: str, *, is_secure: bool, headers: Mapping[str, str], compress: bool
    ) -> None:
        compression = grpc.Compression.Gzip if compress else grpc.Compression.NoCompression
        if is_secure:
            credentials = grpc.ssl_channel_credentials()
            self._channel = grpc.aio.secure_channel(
                target, credentials, options=OPTIONS, compression=compression
            )
        else:
            self._channel = grpc.aio.insecure_channel(
                target, options=OPTIONS, compression=compression
            )
        self._call = self._channel.unary_unary(METHOD)
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())

    async def export(self, request: bytes, *, timeout_s: float) -> Answer:
        """See `Exporter.export`."""
        try:
            response = await self._call(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            return _answer(error)
        return taken(response)

    async def close(self) -> None:
        """See `Exporter.close`."""
        await self._channel.close()


def _answer(error: grpc.aio.AioRpcError) -> Answer:
    code = error.code()
    why = f"{code.name}: {error.details() or ''}"[:MAX_MESSAGE_CHARS]
    details = dict(error.trailing_metadata() or ()).get(STATUS_DETAILS)
    after_s = retry_after_s(details) if isinstance(details, bytes) else None
    asks = code is grpc.StatusCode.RESOURCE_EXHAUSTED and after_s is not None
    return Later(why, after_s) if code in RETRY_CODES or asks else Never(why)
