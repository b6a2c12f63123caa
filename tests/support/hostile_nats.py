"""What stands where a NATS server was: takes connections, goes so far in the greeting, and resets them."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INFO = (
    b'INFO {"server_id":"x","version":"2.15.1","headers":true,"max_payload":1048576,"proto":1}\r\n'
)
STEPS = ("reset at once", "reset after INFO", "reset after CONNECT", "reset after PONG")


class HostileServer:
    """Resets every connection after one of `STEPS`; a thread, so that the loop under test sees it as another process."""

    def __init__(self, port: int, step: str) -> None:
        self._step = STEPS.index(step)
        self._socket = socket.create_server(("127.0.0.1", port))
        self._socket.settimeout(0.05)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self.taken = 0
        """Connections so far."""

    def _serve(self) -> None:
        while not self._stop.is_set():
            with suppress(OSError):
                connection, _ = self._socket.accept()
                self.taken += 1
                with connection, suppress(OSError):
                    self._greet(connection)

    def _greet(self, connection: socket.socket) -> None:
        connection.settimeout(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self._step > 0:
            connection.sendall(INFO)
        if self._step > 1:
            connection.recv(4096)
        if self._step > 2:
            connection.sendall(b"PONG\r\n")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and give the port back."""
        self._stop.set()
        self._thread.join()
        self._socket.close()


@contextmanager
def hostile(port: int, step: str) -> Iterator[HostileServer]:
    """Be there for a while."""
    server = HostileServer(port, step)
    server.start()
    try:
        yield server
    finally:
        server.stop()
