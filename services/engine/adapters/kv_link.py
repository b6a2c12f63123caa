"""Keeps an engine connected with the store of its host: a thread connects, and again with growing pauses when the store is restarted.

The scheduler never waits for it: it takes a new connection when there is one, and has none meanwhile.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from typing_extensions import override

from shared import logs
from shared.kv.client import CannotConnect, Client
from shared.kv.protocol import Hello

CONNECT_S = 2.0
"""Deadline of one attempt."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
LOOK_S = 0.1
"""Time between two looks at whether the connection still stands."""

_log = logs.get("vllm")


class StoreLink:
    """The thread, and the connections that it made."""

    def __init__(self, path: str, region_fd: int, hello: Callable[[], Hello]) -> None:
        """`hello` is called in the thread, once, and may take its time; what it raises ends all attempts."""
        self._path = path
        self._region_fd = region_fd
        self._hello = hello
        self._made: queue.SimpleQueue[Client] = queue.SimpleQueue()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="kv store link")
        self._thread.start()

    @override
    def __repr__(self) -> str:
        return f"<StoreLink {self._path}{' over' if self._is_over.is_set() else ''}>"

    def take(self) -> Client | None:
        """Return a connection that was made since the last call, if any. Does not wait."""
        try:
            return self._made.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop connecting. Connections are the taker's; one that nobody took is closed."""
        self._is_over.set()
        self._thread.join(CONNECT_S)
        while (client := self.take()) is not None:
            client.close()

    def _run(self) -> None:
        try:
            hello = self._hello()
        except Exception as error:  # noqa: BLE001 - without it there is no store for this engine, and all else goes on
            _log.error("kv_store_off", error=repr(error))
            return
        pause_s = FIRST_PAUSE_S
        is_told = False
        while not self._is_over.is_set():
            try:
                client = Client.connect(self._path, hello, self._region_fd, deadline_s=CONNECT_S)
            except CannotConnect as error:
                if not is_told:
                    _log.warning("kv_store_away", error=str(error))
                    is_told = True
                self._is_over.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            _log.info("kv_store_there", store=client.store, namespace=hello.namespace)
            self._made.put(client)
            pause_s, is_told = FIRST_PAUSE_S, False
            while client.is_alive and not self._is_over.wait(LOOK_S):
                pass
