"""Limits and timeouts of the HTTP server: every wait has an end and every buffer a bound.

The defaults suit clients behind a load balancer.
"""

from __future__ import annotations

import msgspec


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the HTTP server listens and what it tolerates."""

    host: str = "127.0.0.1"
    """Address or name to bind; every address of a name is bound."""
    port: int = 8080
    """0 lets the kernel choose (see `HttpServer.port`)."""
    backlog: int = 2048
    """Connections that the kernel holds until they are accepted."""
    reuse_port: bool = False
    """Several processes on one port (SO_REUSEPORT). A port taken by a stranger who sets it too is not noticed then."""
    tls_cert: str = ""
    """PEM file with the certificate chain; TLS is on when set."""
    tls_key: str = ""
    """PEM file with the private key; empty if it stands in `tls_cert`."""

    max_connections: int = 8192
    """Beyond this a new connection is answered 503 and closed. Lowered to what the process's file limit allows."""
    max_request_line_bytes: int = 8192
    """Of the target in it; 414 beyond."""
    max_head_bytes: int = 65_536
    """All header fields together; 431 beyond. Tracing and auth proxies easily pass the usual 8 KiB."""
    max_headers: int = 200
    """Header fields; 431 beyond."""
    max_unfinished_body_bytes: int = 512 << 20
    """Of all requests that are still arriving, together; 503 beyond."""
    max_write_buffer_bytes: int = 1 << 20
    """Of a stream whose client does not read; the connection is cut beyond."""

    head_timeout_s: float = 10.0
    """From a request's first byte (or from connecting) to the end of its head; 408 after."""
    body_idle_s: float = 20.0
    """Between two pieces of a body; 408 after."""
    body_total_s: float = 120.0
    """From head to the end of the body; 408 after."""
    keep_alive_s: float = 120.0
    """Idle time between two requests. Longer than the 60–75 s of usual load balancers, so that they close first and never reuse a
    connection that is just being closed."""
    write_stall_s: float = 30.0
    """Without a byte of progress to a client that has more than 64 KiB waiting; the connection is cut after."""
    linger_s: float = 2.0
    """Input is still read and dropped after our last byte, so that a reset does not destroy the answer on its way."""
    unacked_s: float = 60.0
    """Sent bytes, or probes of a silent connection, without acknowledgement (a peer that vanished); the kernel cuts after
    (TCP_USER_TIMEOUT). Where nothing is sent, up to a quarter of it later."""
    sweep_s: float = 0.25
    """Between two looks at all deadlines: timeouts come up to this much late."""
