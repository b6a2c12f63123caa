"""One namespace on one disk: an LMDB environment with values of one size, so that freed runs of pages always fit the next value.

Values are in one database, and a row for each (generation, last uses) in a small one: listing keys must not touch the values' pages.
Every access is one short transaction: a reader that stays would keep freed pages from being used again.
No sync at commits: the store is a cache, and after a power cut what is damaged does not check out.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import lmdb
import msgspec

from services.kvstore.orders import ROW
from services.kvstore.trailer import TRAILER_BYTES

DATA = "data.mdb"
ABOUT = "about.json"
TRANSACTION_BYTES = 1_500_000
"""Dirty bytes of a transaction at most: beyond it the allocator gives memory back and takes it again, five times slower."""
MAP_FACTOR = 1.25
MAP_EXTRA = 256 << 20
_MAX_READERS = 32


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the namespace's folder beside the files of LMDB."""

    value_bytes: int
    told: dict[str, str] = {}


class NoSpace(Exception):
    """The folder is no namespace that can be opened; the message says why."""


class Space:
    """An open namespace. Its environment may be open once in a process."""

    def __init__(self, folder: Path, about: About, *, budget_bytes: int, read_only: bool) -> None:
        self.folder = folder
        self.about = about
        self.stored_bytes = about.value_bytes + TRAILER_BYTES
        self._map_bytes = int(budget_bytes * MAP_FACTOR) + MAP_EXTRA
        self._read_only = read_only
        self._gate = threading.Condition()
        self._users = 0
        self._open()

    @classmethod
    def of_folder(cls, folder: Path, *, budget_bytes: int, read_only: bool) -> Space:
        """Open what is there. Raises `NoSpace`, `lmdb.Error`, `OSError`."""
        try:
            about = msgspec.json.decode((folder / ABOUT).read_bytes(), type=About)
        except (FileNotFoundError, msgspec.DecodeError) as error:
            raise NoSpace(str(error)) from error
        if about.value_bytes <= 0:
            raise NoSpace(f"values of {about.value_bytes} bytes")
        return cls(folder, about, budget_bytes=budget_bytes, read_only=read_only)

    @classmethod
    def create(cls, folder: Path, about: About, *, budget_bytes: int) -> Space:
        """Make an empty namespace. Raises `lmdb.Error`, `OSError`."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        (folder / ABOUT).write_bytes(msgspec.json.encode(about))
        return cls(folder, about, budget_bytes=budget_bytes, read_only=False)

    def _open(self, *, readahead: bool = True) -> None:
        self._env = lmdb.open(
            str(self.folder),
            map_size=self._map_bytes,
            max_dbs=2,
            max_readers=_MAX_READERS,
            mode=0o600,
            sync=False,
            metasync=False,
            readahead=readahead,
            readonly=self._read_only,
            lock=not self._read_only,
        )
        self._values = self._env.open_db(b"values", create=not self._read_only)
        self._rows = self._env.open_db(b"rows", create=not self._read_only)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Hold the environment open meanwhile: a compaction exchanges it."""
        with self._gate:
            self._users += 1
        try:
            yield
        finally:
            with self._gate:
                self._users -= 1
                self._gate.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for all others to be done with the environment, and keep them out meanwhile."""
        with self._gate:
            while self._users:
                self._gate.wait()
            yield

    def look_through(self) -> None:
        """Walk both trees without reading ahead, and have each row's value in place; raises or dies where the files are damaged."""
        self._env.close()
        self._open(readahead=False)
        with self._env.begin() as txn:
            rows = list(txn.cursor(self._rows).iternext(keys=True, values=False))
            values = list(txn.cursor(self._values).iternext(keys=True, values=False))
            is_ordered = rows == sorted(set(rows)) and values == sorted(set(values))
            counts = (txn.stat(self._rows)["entries"], txn.stat(self._values)["entries"])
        if not is_ordered or counts != (len(rows), len(values)):
            raise lmdb.CorruptedError(f"{self.folder}: the trees are out of order")
        self._env.close()
        self._open()

    def rows(self) -> list[tuple[bytes, bytes]]:
        """Return each key with its row."""
        with self._env.begin() as txn:
            found = list(txn.cursor(self._rows).iternext())
        return [(key, row) for key, row in found if len(row) == ROW.size]

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Read values meanwhile; not for long."""
        with self._env.begin(db=self._values, buffers=True) as txn:
            yield Reader(txn)

    def put(
        self, values: Sequence[tuple[bytes, bytes, memoryview]], drop: Sequence[bytes] = ()
    ) -> None:
        """Keep values, each with its row, and delete others, in one transaction."""
        with self._env.begin(write=True) as txn:
            for key in drop:
                self._delete(txn, key)
            for key, row, value in values:
                txn.put(key, value, db=self._values)
                txn.put(key, row, db=self._rows)

    def delete(self, keys: Sequence[bytes]) -> None:
        """Delete values and their rows."""
        if self._read_only:
            return
        with self._env.begin(write=True) as txn:
            for key in keys:
                self._delete(txn, key)

    def note(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Exchange rows of values that are there."""
        with self._env.begin(write=True, db=self._rows) as txn:
            for key, row in rows:
                if txn.get(key) is not None:
                    txn.put(key, row)

    def sync(self) -> None:
        """Have what was committed on the disk."""
        self._env.sync(True)

    def compact(self) -> None:
        """Write the file anew without its free pages. Raises `OSError` or `lmdb.Error` where there is no room; then nothing has changed."""
        beside = self.folder / "compact"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(mode=0o700)
        try:
            self._env.copy(str(beside), compact=True)
            with self.alone():
                self._env.close()
                (beside / DATA).replace(self.folder / DATA)
                self._open()
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def file_bytes(self) -> int:
        """Return what the file takes."""
        return (self.folder / DATA).stat().st_blocks * 512

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _delete(self, txn: lmdb.Transaction, key: bytes) -> None:
        txn.delete(key, db=self._values)
        txn.delete(key, db=self._rows)


class Reader:
    """Values, as views of the map that end with the transaction."""

    def __init__(self, txn: lmdb.Transaction) -> None:
        self._txn = txn

    def get(self, key: bytes) -> memoryview | None:
        """Return the view of a value. The map's pages are touched by this call."""
        found = self._txn.get(key)
        assert found is None or isinstance(found, memoryview), "buffers were asked for"
        return found
