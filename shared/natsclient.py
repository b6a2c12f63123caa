"""The NATS client library, without its websockets: nobody here speaks them, and their HTTP client takes long to import."""

from __future__ import annotations

from shared.imports import without

with without("aiohttp"):
    from nats import errors
    from nats.aio.client import Client, Server
    from nats.aio.msg import Msg
    from nats.aio.transport import TcpTransport

__all__ = ["Client", "Msg", "Server", "TcpTransport", "errors"]
