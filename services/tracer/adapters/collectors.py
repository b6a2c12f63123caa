"""From the settings of a collector to the exporter that speaks to it."""

from __future__ import annotations

from urllib.parse import urlsplit

from services.tracer.ports import Exporter
from services.tracer.settings import OtlpSettings
from shared.errors import UserError

HTTP_SCHEMES = {"http": False, "https": True}
GRPC_SCHEMES = {"grpc": False, "grpcs": True}
GRPC_PORT = 4317
"""OTLP's port for gRPC; an `http` address with it means gRPC, as OpenTelemetry's own exporters take it."""
TRACES_PATH = "/v1/traces"


def make_exporter(settings: OtlpSettings) -> Exporter | None:
    """Return the exporter that the settings ask for; None: no collector. Call inside the running loop. Raises `UserError`."""
    if not settings.url:
        return None
    headers = parse_headers(settings.headers.reveal())
    compress = settings.compression == "gzip"
    scheme, target, path = _parts(settings.url)
    schemes = HTTP_SCHEMES | GRPC_SCHEMES
    if is_grpc(settings):
        # Half a second of imports that HTTP alone does not need.
        from services.tracer.adapters.otlp_grpc import GrpcExporter  # noqa: PLC0415

        return GrpcExporter(target, is_secure=schemes[scheme], headers=headers, compress=compress)
    from services.tracer.adapters.otlp_http import HttpExporter  # noqa: PLC0415

    url = f"{scheme}://{target}{path or TRACES_PATH}"
    return HttpExporter(url, headers=headers, compress=compress)


def is_grpc(settings: OtlpSettings) -> bool:
    """Return whether the settings mean gRPC. Raises `UserError`."""
    scheme, target, _ = _parts(settings.url)
    if settings.protocol == "http" and scheme in GRPC_SCHEMES:
        raise UserError(f"otlp.protocol is http and the address {settings.url!r} is one of gRPC")
    if settings.protocol != "auto":
        return settings.protocol == "grpc"
    return scheme in GRPC_SCHEMES or target.endswith(f":{GRPC_PORT}")


def _parts(url: str) -> tuple[str, str, str]:
    """Return scheme, host with port, and path. Raises `UserError`."""
    try:
        parts = urlsplit(url)
        has_port = parts.port is not None
    except ValueError:
        parts, has_port = urlsplit(""), False
    is_known = parts.scheme in HTTP_SCHEMES | GRPC_SCHEMES and parts.hostname
    if not is_known or parts.username or (parts.scheme in GRPC_SCHEMES and not has_port):
        raise UserError(
            f"{url.rpartition('@')[2]!r} is no address of a collector",
            hint="write it as http://127.0.0.1:4318 or grpc://127.0.0.1:4317; keys go into otlp.headers",
        )
    return parts.scheme, parts.netloc, parts.path.rstrip("/")


def parse_headers(text: str) -> dict[str, str]:
    """Return `name=value,name=value` as headers. Raises `UserError` without the text, which may hold a key."""
    headers = {}
    for number, pair in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip().replace("-", "").isalnum():
            raise UserError(
                f"otlp.headers: part {number} is not NAME=VALUE", hint="write it as api-key=…"
            )
        headers[name.strip()] = value.strip()
    return headers
