"""A KV store that keeps values in its memory and misbehaves on request: the other side of the socket in tests of engines.

It keeps to the contract otherwise, life lines included; `services.kvstore` is the real one.
"""

from __future__ import annotations

import mmap
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from shared.kv.protocol import (
    KEYS_A_PACKET,
    VERSION,
    Done,
    FromEngine,
    Gained,
    Hello,
    LifeLines,
    Load,
    Lost,
    Rejected,
    Save,
    Touch,
    Welcome,
)
from shared.kv.seqpacket import BadPacket, Ended, close_all, encode, receive, send

_decoder = msgspec.msgpack.Decoder(FromEngine)


class MemoryStore:
    """Listens until `close`; all engines share the values of a namespace."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, dict[bytes, bytes]] = {}
        self.hellos: list[Hello] = []
        self.seen: list[Load | Save | Touch] = []
        self.answers = threading.Event()
        """Cleared: jobs are read, and neither done nor answered."""
        self.answers.set()
        self.broken: set[bytes] = set()
        """Keys that are told as there and never load."""
        self._peers: list[_Peer] = []
        self._lock = threading.RLock()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.bind(str(path))
        self._sock.listen()
        self._is_over = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self, *, keeps_life_lines: bool = False) -> None:
        """End as a killed store would; its copying processes may outlive it for a while."""
        self._is_over = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self.path.unlink(missing_ok=True)
        for peer in list(self._peers):
            peer.end(keeps_life_lines=keeps_life_lines)

    def let_go(self) -> None:
        """End the life lines that `close` kept."""
        for peer in self._peers:
            peer.end()

    def lose(self, namespace: str, keys: list[bytes]) -> None:
        """Drop values, and tell everybody."""
        for key in keys:
            self.values[namespace].pop(key, None)
        self._tell(namespace, Lost(keys=keys))

    def _tell(self, namespace: str, message: Gained | Lost) -> None:
        for peer in list(self._peers):
            if peer.namespace == namespace:
                peer.say(message)

    def _accept(self) -> None:
        while not self._is_over:
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return
            peer = _Peer(self, sock)
            self._peers.append(peer)
            threading.Thread(target=peer.run, daemon=True).start()


class _Peer:
    def __init__(self, store: MemoryStore, sock: socket.socket) -> None:
        self.namespace = ""
        self._store = store
        self._sock = sock
        self._line = -1
        self._hello: Hello | None = None

    def end(self, *, keeps_life_lines: bool = False) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        if not keeps_life_lines and self._line >= 0:
            close_all([self._line])
            self._line = -1

    def say(self, message: msgspec.Struct, fds: list[int] | None = None) -> None:
        with suppress(Ended):
            send(self._sock, encode(message), fds or ())

    def run(self) -> None:
        with suppress(Ended, BadPacket, OSError):
            while True:
                packet, fds = receive(self._sock)
                message = _decoder.decode(packet)
                if isinstance(message, Hello):
                    self._greet(message, fds)
                else:
                    self._serve(message)

    def _greet(self, hello: Hello, fds: list[int]) -> None:
        if hello.version != VERSION:
            self.say(Rejected(reason="another version"))
            return
        self._store.hellos.append(hello)
        self._hello = hello
        self._region = mmap.mmap(fds[0], hello.slots * hello.value_bytes)
        close_all(fds)
        ours, theirs = os.pipe()
        self._line = theirs
        self.namespace = hello.namespace
        values = self._store.values.setdefault(self.namespace, {})
        self.say(Welcome(version=VERSION, store="memory"))
        self.say(LifeLines(), [ours])
        os.close(ours)
        keys = list(values)
        for at in range(0, len(keys), KEYS_A_PACKET):
            self.say(Gained(keys=keys[at : at + KEYS_A_PACKET]))

    def _serve(self, message: Load | Save | Touch) -> None:
        self._store.seen.append(message)
        self._store.answers.wait()
        if isinstance(message, Touch):
            return
        values = self._store.values[self.namespace]
        missing = []
        for place, (key, slot) in enumerate(zip(message.keys, message.slots, strict=True)):
            if isinstance(message, Save):
                values[key] = self._slot(slot)
            elif key in values and key not in self._store.broken:
                self._fill(slot, values[key])
            else:
                missing.append(place)
        if isinstance(message, Save):
            self._store._tell(self.namespace, Gained(keys=list(message.keys)))
        self.say(Done(job=message.job, missing=missing))

    def _slot(self, slot: int) -> bytes:
        assert self._hello is not None
        size = self._hello.value_bytes
        return self._region[slot * size : (slot + 1) * size]

    def _fill(self, slot: int, value: bytes) -> None:
        self._region[slot * len(value) : (slot + 1) * len(value)] = value
