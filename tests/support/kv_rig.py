"""A KV store in the test's loop with real mirrors, and engines at its real socket whose bytes are known."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mmap
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from services.kvstore.settings import DeadlineSettings, KvStoreSettings
from services.kvstore.store import Store
from shared.kv.client import Client
from shared.kv.namespace import digest
from shared.kv.protocol import VERSION, Done, Hello

VALUE_BYTES = 64 << 10
NAMESPACE = digest({"model": "m", "dtype": "float32"})


def key_of(number: int) -> bytes:
    """Return a key of vLLM's size."""
    return hashlib.sha256(b"%d" % number).digest() + b"\0\0\0\0"


def bytes_of(number: int, *, size: int = VALUE_BYTES, salt: bytes = b"") -> bytes:
    """Return the one value that may ever be loaded for a key."""
    seed = hashlib.sha256(salt + b"%d" % number).digest()
    return (seed * (size // len(seed) + 1))[:size]


class Wrong(Exception):
    """A load gave other bytes than were saved."""


class Engine:
    """An engine at the socket. Slots are poisoned before a load, so that what was not copied is seen."""

    def __init__(
        self,
        path: str,
        *,
        name: str = "e",
        namespace: str = NAMESPACE,
        value_bytes: int = VALUE_BYTES,
        slots: int = 64,
        salt: bytes = b"",
    ) -> None:
        self.value_bytes = value_bytes
        self.slots = slots
        self._salt = salt
        self._fd = os.memfd_create("region")
        os.ftruncate(self._fd, slots * value_bytes)
        self.memory = mmap.mmap(self._fd, slots * value_bytes)
        hello = Hello(
            version=VERSION,
            engine=name,
            namespace=namespace,
            told={"model": "m"},
            value_bytes=value_bytes,
            slots=slots,
        )
        self.client = Client.connect(path, hello, self._fd, deadline_s=5.0)
        self._job = 0

    def slot(self, slot: int) -> slice:
        """Return where a slot is."""
        return slice(slot * self.value_bytes, (slot + 1) * self.value_bytes)

    def value(self, number: int) -> bytes:
        """Return the value of a key."""
        return bytes_of(number, size=self.value_bytes, salt=self._salt)

    def begin_save(self, numbers: Sequence[int], *, first_slot: int = 0) -> int:
        """Ask for values to be kept."""
        for at, number in enumerate(numbers):
            self.memory[self.slot(first_slot + at)] = self.value(number)
        self._job += 1
        slots = range(first_slot, first_slot + len(numbers))
        assert self.client.save(self._job, [key_of(n) for n in numbers], list(slots))
        return self._job

    def begin_load(self, numbers: Sequence[int], *, first_slot: int = 0) -> int:
        """Ask for values."""
        for at in range(len(numbers)):
            self.memory[self.slot(first_slot + at)] = b"\xaa" * self.value_bytes
        self._job += 1
        slots = range(first_slot, first_slot + len(numbers))
        assert self.client.load(self._job, [key_of(n) for n in numbers], list(slots))
        return self._job

    async def end(self, job: int, *, deadline_s: float = 15.0) -> Done:
        """Return the end of the one job under way."""
        ends_at = asyncio.get_running_loop().time() + deadline_s
        while asyncio.get_running_loop().time() < ends_at:
            for done in self.client.poll():
                assert done.job == job
                return done
            if not self.client.is_alive:
                raise ConnectionError(self.client.why_ended)
            await asyncio.sleep(0.001)
        raise TimeoutError(f"job {job} has no end")

    async def save(self, numbers: Sequence[int]) -> list[int]:
        """Have values kept; return the numbers of those that were not."""
        missing: list[int] = []
        for at in range(0, len(numbers), self.slots):
            part = numbers[at : at + self.slots]
            done = await self.end(self.begin_save(part))
            missing += [part[i] for i in done.missing]
        return missing

    async def load(self, numbers: Sequence[int]) -> list[int]:
        """Load values; return the numbers of those that are missing. Raises `Wrong` where bytes are not those that were saved."""
        missing: list[int] = []
        for at in range(0, len(numbers), self.slots):
            part = numbers[at : at + self.slots]
            done = await self.end(self.begin_load(part))
            for i, number in enumerate(part):
                if i in done.missing:
                    missing.append(number)
                elif self.memory[self.slot(i)] != self.value(number):
                    raise Wrong(number)
        return missing

    def knows(self, numbers: Sequence[int]) -> bool:
        """Return whether it was told that all of these can be loaded."""
        return all(key_of(n) in self.client for n in numbers)

    def close(self) -> None:
        """Leave."""
        self.client.close()
        self.memory.close()
        os.close(self._fd)


async def until(condition: Callable[[], object], deadline_s: float = 10.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 - conditions of several threads and processes
            await asyncio.sleep(0.002)


def settings(
    folders: Sequence[Path], *, budget_bytes: int = 64 << 20, **more: object
) -> KvStoreSettings:
    """Return settings with short deadlines, and a socket whose path is short."""
    socket = Path(tempfile.mkdtemp(prefix="kv")) / "s"
    chosen = {"deadline": DeadlineSettings(read_s=0.5, write_s=2.0, open_s=20.0), **more}
    return KvStoreSettings(
        folders=tuple(map(str, folders)),
        socket=str(socket),
        budget_bytes=budget_bytes,
        bus=False,
        **chosen,  # type: ignore[arg-type]
    )


@asynccontextmanager
async def running(chosen: KvStoreSettings, *, clean: bool = True) -> AsyncIterator[Store]:
    """Run a store meanwhile; not `clean`: its mirrors are killed at the end, as by a crash."""
    store = Store(chosen, name="test")
    store.open()
    task = asyncio.get_running_loop().create_task(store.run())
    try:
        await until(lambda: any(m.serves for m in store.mirrors) or task.done())
        yield store
    finally:
        if not clean:
            for mirror in store.mirrors:
                mirror.kill()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await store.close(drain_s=5.0 if clean else 0.2)


@asynccontextmanager
async def engine(store: Store, chosen: KvStoreSettings, **more: object) -> AsyncIterator[Engine]:
    """Connect an engine meanwhile."""
    made = await asyncio.to_thread(Engine, chosen.socket, **more)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()
