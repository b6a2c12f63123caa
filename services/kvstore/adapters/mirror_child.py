"""A mirror's process: the only one that opens LMDB on its disk. `python -m services.kvstore.adapters.mirror_child FD CHOICES`.

May die at any instruction (a file cut under the map is a SIGBUS) or hang in the kernel; the store sees to the rest.
Three kinds of threads beside the one that takes orders: readers, one writer (LMDB has one at a time), and a keeper that syncs
and looks after the folder.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import lmdb
import msgspec

from services.kvstore import orders
from services.kvstore.adapters import mirror_files
from services.kvstore.adapters.copying import Outcome, read_values, write_values
from services.kvstore.adapters.lmdb_space import About, NoSpace, Space
from services.kvstore.adapters.regions import Buffers, Region
from services.kvstore.lifecycle import Trouble
from shared.kv.seqpacket import BadPacket, encode, receive, send
from shared.kv.seqpacket import Ended as ParentGone
from shared.parentage import die_with_parent

EXIT_FAILED = 3
READERS = 2
KEEPER_S = 0.5
SYNC_S = 5.0
_KEYS = 2000


class Mirror:
    """The process's state."""

    def __init__(self, sock: socket.socket, choices: orders.Choices) -> None:
        self._sock = sock
        self._choices = choices
        self._folder = Path(choices.folder)
        self._spaces: dict[str, Space] = {}
        self._regions: dict[int, Region] = {}
        self._reads: queue.SimpleQueue[tuple[orders.Read | orders.Check, Region | None]] = (
            queue.SimpleQueue()
        )
        self._writes: queue.SimpleQueue[tuple[object, Region | None]] = queue.SimpleQueue()
        self._buffers = Buffers()
        self._say_lock = threading.Lock()
        self._unsynced = False

    # --- words

    def say(self, message: msgspec.Struct) -> None:
        """Send one message; waits for the store to read."""
        with self._say_lock:
            send(self._sock, encode(message))

    def fail(self, error: Exception) -> None:
        """Say why and end the process, whatever the other threads do."""
        trouble = mirror_files.trouble_of(error)
        if trouble is Trouble.IO and mirror_files.is_full(self._folder):
            trouble = Trouble.FULL
        try:
            self.say(
                orders.Failed(trouble=trouble, reason=f"{type(error).__name__}: {error}"[:500])
            )
        finally:
            os._exit(EXIT_FAILED)

    def guarded(self, act: Callable[[], None]) -> None:
        """Do something with the disk; an error ends the process."""
        try:
            act()
        except ParentGone:
            os._exit(EXIT_FAILED)
        except (lmdb.Error, OSError, MemoryError) as error:
            self.fail(error)

    # --- opening

    def open(self) -> None:
        """Open all namespaces, tell what is in them, and begin."""
        folder, choices = self._folder, self._choices
        if not choices.read_only:
            mirror_files.prepare(folder)
        if choices.empty:
            mirror_files.empty(folder)
        must_check = choices.check or mirror_files.must_check(folder)
        for path in mirror_files.namespaces(folder):
            self._open_space(path, must_check=must_check)
        if not choices.read_only:
            mirror_files.mark(folder, clean=False)  # not before all was looked through
        for name, space in self._spaces.items():
            self._list(name, space)
        self.say(orders.Opened(checked=must_check))
        for _ in range(READERS):
            threading.Thread(target=self._read_forever, daemon=True).start()
        threading.Thread(target=self._write_forever, daemon=True).start()
        threading.Thread(target=self._keep_forever, daemon=True).start()

    def _open_space(self, path: Path, *, must_check: bool) -> None:
        choices = self._choices
        try:
            space = Space.of_folder(
                path, budget_bytes=choices.budget_bytes, read_only=choices.read_only
            )
            if must_check and not choices.read_only:
                space.look_through()
        except (NoSpace, lmdb.Error) as error:
            # One damaged namespace says nothing of the others; what the disk refuses does.
            trouble = mirror_files.trouble_of(error)
            if isinstance(error, NoSpace) or trouble in (Trouble.DAMAGED, Trouble.VANISHED):
                if not choices.read_only:
                    mirror_files.remove(path)
                return
            raise
        self._spaces[path.name] = space

    def _list(self, name: str, space: Space) -> None:
        rows = space.rows()
        for at in range(0, len(rows), orders.ROWS_A_PACKET):
            part = rows[at : at + orders.ROWS_A_PACKET]
            self.say(
                orders.Listed(
                    space=name,
                    value_bytes=space.about.value_bytes,
                    keys=[key for key, _ in part],
                    rows=b"".join(row for _, row in part),
                    told=space.about.told,
                )
            )

    # --- orders

    def serve(self) -> None:
        """Take orders until told to stop, or until the store is gone."""
        decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(orders.ToMirror)
        while True:
            packet, fds = receive(self._sock)
            order = decoder.decode(packet)
            match order:
                case orders.Attach(region=number):
                    fd, life = fds
                    self._regions[number] = Region(fd, life)
                case orders.Detach(region=number):
                    self._regions.pop(number).detach()
                case orders.Read(region=number):
                    region = self._regions[number]
                    region.__enter__()
                    self._reads.put((order, region))
                case orders.Check():
                    self._reads.put((order, None))
                case orders.Ping(task=task):
                    self.say(orders.Ended(task=task))
                case orders.Write(region=number):
                    region = self._regions[number]
                    region.__enter__()
                    self._writes.put((order, region))
                case _:
                    self._writes.put((order, None))

    def _read_forever(self) -> None:
        while True:
            order, region = self._reads.get()
            self.guarded(lambda: self._read(order, region))  # noqa: B023 - called at once

    def _write_forever(self) -> None:
        while True:
            order, region = self._writes.get()
            self.guarded(lambda: self._write(order, region))  # noqa: B023 - called at once

    # --- reading

    def _read(self, order: orders.Read | orders.Check, region: Region | None) -> None:
        began_at = time.monotonic()
        space = self._spaces.get(order.space)
        if space is None or space.about.value_bytes != order.value_bytes:
            outcome = Outcome(missing=list(range(len(order.values))))
        else:
            with space.in_use():
                outcome = read_values(space, order, region, self._buffers)
        if region is not None:
            region.__exit__()
        if outcome.bad:
            keys = [order.values[i].key for i in outcome.bad]
            self._writes.put((orders.Delete(space=order.space, keys=keys), None))
        self.say(
            orders.Ended(
                task=order.task,
                missing=outcome.missing,
                bad=outcome.bad,
                refused=outcome.refused,
                seconds=time.monotonic() - began_at,
            )
        )

    # --- writing

    def _write(self, order: object, region: Region | None) -> None:
        match order:
            case orders.Write() if region is not None:
                self._write_values(order, region)
            case orders.Delete(space=name, keys=keys) if name in self._spaces:
                for at in range(0, len(keys), _KEYS):
                    self._spaces[name].delete(keys[at : at + _KEYS])
                self._unsynced = True
            case orders.Note(space=name, keys=keys, rows=rows) if name in self._spaces:
                step = orders.ROW.size
                parts = [rows[at : at + step] for at in range(0, len(rows), step)]
                self._spaces[name].note(list(zip(keys, parts, strict=True)))
                self._unsynced = True
            case orders.Forget(space=name) if name in self._spaces:
                space = self._spaces.pop(name)
                with space.alone():
                    space.close()
                mirror_files.remove(space.folder)
            case orders.Compact(task=task, space=name):
                self._compact(task, name)
            case orders.Stop():
                self._stop()
            case _:
                return

    def _write_values(self, order: orders.Write, region: Region) -> None:
        began_at = time.monotonic()
        missing = write_values(self._space_for(order), order, region, self._buffers)
        region.__exit__()
        self._unsynced = True
        seconds = time.monotonic() - began_at
        self.say(orders.Ended(task=order.task, missing=missing, seconds=seconds))

    def _space_for(self, order: orders.Write) -> Space:
        space = self._spaces.get(order.space)
        if space is None:
            about = About(value_bytes=order.value_bytes, told=order.told)
            path = self._folder / order.space
            budget = self._choices.budget_bytes
            space = self._spaces[order.space] = Space.create(path, about, budget_bytes=budget)
        return space

    def _compact(self, task: int, name: str) -> None:
        began_at = time.monotonic()
        missing = [0]
        if name in self._spaces:
            try:
                self._spaces[name].compact()
                missing = []
            except OSError:
                missing = [0]  # no room for the copy: all is as before
        seconds = time.monotonic() - began_at
        self.say(orders.Ended(task=task, missing=missing, seconds=seconds))

    def _stop(self) -> None:
        for space in self._spaces.values():
            space.sync()
        if not self._choices.read_only:
            mirror_files.mark(self._folder, clean=True)
        os._exit(0)

    # --- keeping

    def _keep_forever(self) -> None:
        synced_at = time.monotonic()
        while True:
            time.sleep(KEEPER_S)
            self.guarded(self._look)
            if self._unsynced and time.monotonic() - synced_at >= SYNC_S:
                self._unsynced = False
                self.guarded(self._sync)
                synced_at = time.monotonic()

    def _look(self) -> None:
        """See that the folder is still the one that is open, and tell what its files take."""
        sizes: dict[str, int] = {}
        for name, space in list(self._spaces.items()):
            with space.in_use():
                if name in self._spaces:
                    sizes[name] = space.file_bytes()
        disk = os.statvfs(self._folder)
        self.say(orders.Sizes(file_bytes=sizes, free_bytes=disk.f_bavail * disk.f_frsize))

    def _sync(self) -> None:
        for name, space in list(self._spaces.items()):
            with space.in_use():
                if name in self._spaces:
                    space.sync()


def main() -> None:
    """Run a mirror until its store stops it or is gone."""
    choices = msgspec.json.decode(sys.argv[2], type=orders.Choices)
    die_with_parent(choices.parent, signal.SIGKILL)
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.setblocking(True)
    mirror = Mirror(sock, choices)
    mirror.guarded(mirror.open)
    try:
        mirror.serve()
    except (ParentGone, BadPacket):
        os._exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
