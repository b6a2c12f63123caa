"""Listening sockets, TLS context and file limit: what the server needs from the operating system. Errors say what to change."""

from __future__ import annotations

import errno
import resource
import socket
import ssl
import sys
from pathlib import Path
from typing import Final

from services.gateway.http.settings import HttpSettings
from shared.errors import UserError

SPARE_FILES: Final = 384
"""File descriptors for everything that is not a connection: bus, logs, connections being turned away."""
_PROBES: Final = 4
"""Of a silent connection within the time in which a peer must acknowledge."""
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def open_listeners(settings: HttpSettings) -> list[socket.socket]:
    """Return bound, not yet listening sockets, one for each address of the host; raise `UserError`."""
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"Cannot resolve the address {host!r} to listen on: {error}.",
            hint="Use an address of this machine, such as 127.0.0.1 or 0.0.0.0.",
        ) from error
    listeners: list[socket.socket] = []
    problem: OSError | None = None
    for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
        # A port that the kernel chose for the first address is used for the others too.
        chosen = listeners[0].getsockname()[1] if listeners else port
        try:
            listeners.append(_bind(family, (address[0], chosen, *address[2:]), settings))
        except OSError as error:
            problem = error
            if error.errno not in _NOT_HERE:
                break
    if problem is not None and (not listeners or problem.errno not in _NOT_HERE):
        for listener in listeners:
            listener.close()
        raise _explain(problem, settings) from problem
    return listeners


def _bind(family: int, address: tuple[object, ...], settings: HttpSettings) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        prepare_listener(sock, settings)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def prepare_listener(sock: socket.socket, settings: HttpSettings) -> None:
    """Set what accepted connections inherit (on Linux): no delay for small writes, and an end for peers that vanished."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        probe_s = max(1, int(settings.unacked_s / _PROBES))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
        unacked_ms = int(settings.unacked_s * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unacked_ms)


def _explain(error: OSError, settings: HttpSettings) -> UserError:
    where = f"{settings.host or '*'}:{settings.port}"
    match error.errno:
        case errno.EADDRINUSE:
            return UserError(
                f"Port {settings.port} is taken: another program listens on {where}.",
                hint="Stop that program or choose another port.",
            )
        case errno.EACCES:
            return UserError(
                f"No permission to listen on {where}.",
                hint="Ports below 1024 need a privilege; choose a port above.",
            )
        case errno.EADDRNOTAVAIL:
            return UserError(
                f"{settings.host} is not an address of this machine.",
                hint="Use 127.0.0.1 for this machine only or 0.0.0.0 for all its addresses.",
            )
        case _:
            return UserError(f"Cannot listen on {where}: {error}.")


def tls_context(settings: HttpSettings) -> ssl.SSLContext | None:
    """Return the context for `tls_cert` and `tls_key`, None where TLS is off; raise `UserError`."""
    if not settings.tls_cert:
        return None
    for path in filter(None, (settings.tls_cert, settings.tls_key)):
        if not Path(path).is_file():
            raise UserError(f"The TLS file {path} does not exist.", hint="Correct its path.")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key or None)
    except (ssl.SSLError, OSError) as error:
        raise UserError(
            f"Cannot use the TLS certificate {settings.tls_cert}: {error}.",
            hint="Both files must be PEM, the key without a passphrase and belonging to the certificate.",
        ) from error
    return context


def connections_allowed(wanted: int) -> int:
    """Raise the process's soft file limit as far as needed and possible; return how many connections fit."""
    needed = wanted + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < needed:
        soft = needed if hard == unlimited else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == unlimited else max(1, min(wanted, soft - SPARE_FILES))
