"""A KV store as a process: on a real bus and without one, what it tells and answers, its end, and what its death leaves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import tempfile
import time
import urllib.request
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from services.console.fleet.instance import BusAddress
from services.console.kv import commands as kv
from services.console.status import observe, table
from shared.errors import UserError
from shared.kv.client import CannotConnect
from shared.kv.protocol import Load
from shared.kv.seqpacket import Ended, encode, send
from shared.messages import (
    KvListing,
    KvListQuery,
    KvMirrorNews,
    KvPurge,
    KvPurged,
    KvStats,
    KvStatsQuery,
    KvStoreHeartbeat,
    KvVerified,
    KvVerify,
)
from shared.natsbus import NatsBus
from shared.settings import NatsSettings
from tests.support.gateway_process import Child
from tests.support.in_loop import in_loop
from tests.support.kv_rig import VALUE_BYTES, Engine, a_hello, data_of, key_of, until
from tests.support.nats_server import NatsServer, free_port

pytestmark = pytest.mark.timeout(90)
NUMBERS = list(range(30))


class Process:
    """One store process and its place."""

    def __init__(self, folder: Path, url: str, *options: str, mirrors: int = 2) -> None:
        self.host = f"h{uuid4().hex[:8]}"
        self.place = Path(tempfile.mkdtemp(prefix="kv"))
        self.socket = str(self.place / "s")
        self.folders = [folder / f"mirror{n}" for n in range(mirrors)]
        self._options = (
            *("--folders", ",".join(map(str, self.folders))),
            *("--socket", self.socket, "--budget-bytes", str(64 << 20)),
            *("--nats-url", url, *options),
        )
        self._log = folder / f"store-{self.host}.log"
        self.child = self._start()

    def _start(self) -> Child:
        return Child("services.kvstore", self._log, *self._options)

    async def again(self) -> None:
        """Start another one in its place."""
        self.child = self._start()
        await self.child.says("store_ready")

    async def engine(self) -> Engine:
        """Connect, once it listens."""
        async with asyncio.timeout(20):
            while True:
                try:
                    return await asyncio.to_thread(Engine, self.socket)
                except CannotConnect:
                    await asyncio.sleep(0.05)

    @property
    def is_listening(self) -> bool:
        """Return whether its socket is there."""
        return Path(self.socket).exists()

    def close(self) -> None:
        """End it."""
        self.child.kill()
        shutil.rmtree(self.place, ignore_errors=True)


@asynccontextmanager
async def on_bus(server: NatsServer) -> AsyncIterator[NatsBus]:
    async with asyncio.TaskGroup() as group:
        bus = await NatsBus.connect(NatsSettings(url=server.url), group=group, name="test")
        try:
            yield bus
        finally:
            await bus.close()


@asynccontextmanager
async def store(folder: Path, url: str, *options: str, mirrors: int = 2) -> AsyncIterator[Process]:
    process = Process(folder, url, *options, mirrors=mirrors)
    try:
        await process.child.says("store_ready")
        yield process
    finally:
        process.close()


@in_loop
async def test_what_it_tells_and_answers(nats_server, tmp_path):
    port = free_port()
    async with (
        on_bus(nats_server) as bus,
        store(tmp_path, nats_server.url, "--metrics-port", str(port)) as process,
    ):
        e = await process.engine()
        me = await heard(bus, process)
        assert await e.save(NUMBERS) == []
        assert await e.load([*NUMBERS, 99]) == [99]
        stats = await bus.request(KvStatsQuery(store=me.store), timeout_s=5)
        assert isinstance(stats, KvStats)
        assert (30, 1, 30, 1) == (
            *(stats.beat.hits, stats.beat.misses),
            *(stats.beat.values, stats.beat.engines),
        )
        (space,) = stats.namespaces
        assert {"model": "m"} == space.told

        page = await asyncio.to_thread(
            lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        )
        assert 'headrace_kv_job_values_total{kind="load"} 30.0' in page
        assert 'headrace_kv_mirror_serves{mirror="1"} 1.0' in page

        listing = await bus.request(
            KvListQuery(store=me.store, namespace=space.namespace, offset=25, limit=100),
            timeout_s=5,
        )
        assert isinstance(listing, KvListing)
        assert (30, 5) == (listing.total, len(listing.values))

        e.close()


@in_loop
async def test_verify_and_purge_and_the_news_of_a_disk(nats_server, tmp_path):
    news: list[KvMirrorNews] = []
    async with on_bus(nats_server) as bus, store(tmp_path, nats_server.url) as process:
        await bus.subscribe(KvMirrorNews, news.append)
        e = await process.engine()
        me = await heard(bus, process)
        await e.saved(NUMBERS)
        assert (0, 60) == await verified(bus, me)
        broken = data_of(process.folders[0])
        content = bytearray(broken.read_bytes())
        at = content.find(e.value(3)[:64])
        assert at > 0
        with broken.open("r+b") as file:
            file.seek(at + 100)
            file.write(b"!")
        assert (1, 60) == await verified(bus, me)
        assert await e.load(NUMBERS) == [], "the other mirror has it"

        for purge, gone in (
            (KvPurge(store=me.store, older_than_s=3600.0), 0),
            (KvPurge(store=me.store, service="other"), 0),
            (KvPurge(store=me.store), 30),
        ):
            purged = await bus.request(purge, timeout_s=5)
            assert isinstance(purged, KvPurged)
            assert gone == purged.values
        await until(lambda: not e.client.keys)
        assert await e.load(NUMBERS) == NUMBERS

        shutil.rmtree(process.folders[1])
        await until(lambda: any(n.store == me.store and not n.mirror.serves for n in news))
        dropped = next(n for n in news if not n.mirror.serves)
        assert ("vanished", str(process.folders[1])) == (
            dropped.mirror.trouble,
            dropped.mirror.folder,
        )
        await until(lambda: any(n.mirror.serves for n in news), 20)
        e.close()


async def verified(bus: NatsBus, me: KvStoreHeartbeat) -> tuple[int, int]:
    """Have all read; return how many were broken, and how many read."""
    told = await bus.request(KvVerify(store=me.store, begin=True), timeout_s=5)
    async with asyncio.timeout(20):
        while isinstance(told, KvVerified) and told.running:
            await asyncio.sleep(0.05)
            told = await bus.request(KvVerify(store=me.store), timeout_s=5)
    assert isinstance(told, KvVerified)
    return told.bad, told.checked


@in_loop
async def test_it_serves_without_a_bus_and_ends_orderly(tmp_path):
    async with store(tmp_path, f"nats://127.0.0.1:{free_port()}", mirrors=1) as process:
        e = await process.engine()
        await e.saved(NUMBERS)
        assert await e.load(NUMBERS) == []
        process.child.signal(signal.SIGTERM)
        assert 0 == await process.child.exit_code()
        assert b'"clean":true' in (tmp_path / "mirror0" / "headrace-kv.json").read_bytes()
        await until(lambda: not e.client.is_alive and e.client.has_let_go)
        assert not process.is_listening
        e.close()


@in_loop
async def test_its_death_ends_the_life_lines_and_another_one_knows_all(tmp_path):
    async with store(tmp_path, f"nats://127.0.0.1:{free_port()}") as process:
        e = await process.engine()
        await e.saved(NUMBERS)
        children = children_of(process.child.process.pid)
        assert 2 == len(children)
        e.begin_load(NUMBERS)
        process.child.signal(signal.SIGKILL)
        began_at = time.monotonic()
        await until(lambda: not e.client.is_alive and e.client.has_let_go, 5.0)
        assert time.monotonic() - began_at < 3.0
        assert -signal.SIGKILL == await process.child.exit_code()
        await until(lambda: not any(map(is_alive, children)))
        e.close()
        await process.again()
        again = await process.engine()
        await until(lambda: again.knows(NUMBERS))
        assert await again.load(NUMBERS) == []
        again.close()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == pid:
            found.append(int(stat.parent.name))
    return found


@in_loop
async def test_an_engine_that_does_not_read_hinders_nobody(tmp_path):
    async with store(tmp_path, f"nats://127.0.0.1:{free_port()}", mirrors=1) as process:
        other = await process.engine()
        await other.saved(NUMBERS)
        deaf = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        deaf.connect(process.socket)
        fd = os.memfd_create("region")
        os.ftruncate(fd, 64 * VALUE_BYTES)
        send(deaf, encode(a_hello("deaf")), [fd])
        deaf.setblocking(False)
        jobs = 0
        with contextlib.suppress(BlockingIOError, Ended):
            while jobs < 20_000:  # it asks and asks, and never takes an answer
                jobs += 1
                keys = [key_of(n) for n in range(20)]
                send(deaf, encode(Load(job=jobs, keys=keys, slots=list(range(20)))))
        assert jobs > 10
        for _ in range(20):
            assert await other.load(NUMBERS) == []
        deaf.close()
        os.close(fd)
        other.close()


@in_loop
async def test_commands_for_people(nats_server, tmp_path, capsys):
    address = BusAddress(url=nats_server.url, password="")
    async with store(tmp_path, nats_server.url) as process:
        e = await process.engine()
        await e.saved(NUMBERS)
        async with on_bus(nats_server) as bus:
            host = (await heard(bus, process)).store

        async def run(action: str, **more: object) -> tuple[int, str]:
            options = Namespace(
                **{"action": action, "store": host, "json": False, "namespace": "", **more}
            )
            code = await asyncio.to_thread(kv.run, options, address)
            return code, capsys.readouterr().out

        code, text = await run("stats")
        assert 0 == code
        assert str(process.folders[0]) in text
        assert "model m" in text
        code, text = await run("ls", limit=5, offset=0)
        assert "30 values" in text
        assert "25 more: --offset 5" in text
        async with asyncio.timeout(20):
            while True:  # values reach the second mirror a little later
                code, text = await run("verify")
                assert 0 == code
                if "60 of 60 copies read, none broken" in text:
                    break
        purge = {"service": "", "older_than": 0.0}
        with pytest.raises(UserError, match="delete everything"):
            await run("purge", all=False, **purge)
        code, text = await run("purge", all=True, **purge)
        assert "deleted 30 values" in text
        code, text = await run("stats", json=True)
        assert 0 == msgspec.json.decode(text)[0]["beat"].get("values", 0)
        shown = table(await observe(address))
        assert "KV STORE" in shown
        assert "healthy, healthy" in shown
        e.close()


async def heard(bus: NatsBus, process: Process) -> KvStoreHeartbeat:
    """Return the heartbeat of this test's store with both mirrors in order: tests share the server."""
    folders = [str(folder) for folder in process.folders]
    beats: dict[str, KvStoreHeartbeat] = {}
    await bus.subscribe(KvStoreHeartbeat, lambda beat: beats.update({beat.store: beat}))

    def mine() -> list[KvStoreHeartbeat]:
        ours = [beat for beat in beats.values() if [m.folder for m in beat.mirrors] == folders]
        return [beat for beat in ours if all(m.state == "healthy" for m in beat.mirrors)]

    await until(mine)
    return mine()[0]
