"""Real gateway and engine processes (fake backend) on a real NATS server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.nats_server import NatsServer, free_port

ROOT = Path(__file__).resolve().parents[2]
START_S = 30.0


class Child:
    """One process of ours and its log."""

    def __init__(self, module: str, log: Path, *options: str) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}  # noqa: TID251 - handed on to a child
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *options],
                env={**inherited, "PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=out,
            )

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return self._log.read_text()

    async def says(self, mark: str) -> None:
        """Return when its log has the mark; fails where the process ends before."""
        async with asyncio.timeout(START_S):
            while mark not in self.log:
                assert self.process.poll() is None, self.log
                await asyncio.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        """Return how it ended, once it has."""
        async with asyncio.timeout(START_S):
            while (code := self.process.poll()) is None:  # noqa: ASYNC110 - a process tells nobody here
                await asyncio.sleep(0.02)
        return code

    def kill(self) -> None:
        """End it at once, if it still runs."""
        self.process.kill()
        self.process.wait(5)


class Site:
    """Gateways and engines of one service; a context manager that leaves no process."""

    def __init__(self, server: NatsServer, folder: Path) -> None:
        self.server = server
        self.service = f"s{uuid4().hex[:12]}"
        self.gateways: list[Child] = []
        self.engines: list[Child] = []
        self.tracers: list[Child] = []
        self.ports: list[int] = []
        self.key = ""
        """API key for the questions of this class, where the gateways want one."""
        self._folder = folder
        self._places: list[Path] = []

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        for child in (*self.gateways, *self.engines, *self.tracers):
            child.kill()
        for place in self._places:
            shutil.rmtree(place, ignore_errors=True)

    def url(self, gateway: int = 0) -> str:
        """Return where a gateway listens."""
        return f"http://127.0.0.1:{self.ports[gateway]}"

    def add_gateway(self, *options: str) -> Child:
        """Start a gateway."""
        self.ports.append(free_port())
        log = self._folder / f"gateway-{len(self.ports)}.log"
        port = ("--http-port", str(self.ports[-1]))
        child = Child("services.gateway", log, "--nats-url", self.server.url, *port, *options)
        self.gateways.append(child)
        return child

    def add_engine(self, *options: str) -> Child:
        """Start an engine."""
        log = self._folder / f"engine-{len(self.engines)}.log"
        own = ("--service", self.service, "--backend", "fake", "--nats-url", self.server.url)
        child = Child("services.engine", log, *own, *options)
        self.engines.append(child)
        return child

    def add_tracer(self, *options: str) -> Child:
        """Start a tracer."""
        log = self._folder / f"tracer-{len(self.tracers)}.log"
        child = Child("services.tracer", log, "--nats-url", self.server.url, *options)
        self.tracers.append(child)
        return child

    def add_store(self, *options: str) -> Child:
        """Start a KV store."""
        place = Path(tempfile.mkdtemp(prefix="kv"))
        self._places.append(place)
        options = ("--folders", str(place / "blocks"), "--socket", str(place / "s"), *options)
        log = self._folder / "kvstore.log"
        child = Child("services.kvstore", log, "--nats-url", self.server.url, *options)
        self.tracers.append(child)
        return child

    async def ready(self) -> None:
        """Return when every engine serves and every gateway knows it."""
        async with asyncio.timeout(START_S):
            for engine in self.engines:
                await engine.says("engine_ready")
            for tracer in self.tracers:
                await tracer.says("_ready")
            for number, gateway in enumerate(self.gateways):
                await gateway.says("gateway_ready")
                while self.service not in await self.models(number):  # noqa: ASYNC110 - asked over HTTP
                    await asyncio.sleep(0.05)

    async def models(self, gateway: int = 0) -> list[str]:
        """Return the models that a gateway knows."""
        headers = {"Authorization": f"Bearer {self.key}"}
        request = urllib.request.Request(f"{self.url(gateway)}/v1/models", headers=headers)  # noqa: S310
        page = await asyncio.to_thread(_fetch, request)
        return [entry["id"] for entry in json.loads(page)["data"]]

    async def is_ready(self, *, gateway: int = 0) -> bool:
        """Return whether a gateway says that it would serve a request now."""
        page = await asyncio.to_thread(_fetch, f"{self.url(gateway)}/ready")
        return b"not ready" not in page

    async def until_figure(self, name: str, value: float, *, timeout_s: float = 10.0) -> None:
        """Return when a figure of the first gateway has a value."""
        async with asyncio.timeout(timeout_s):
            while await self.figure(name) != value:  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.05)

    async def figure(self, name: str, *, gateway: int = 0) -> float:
        """Return a figure of a gateway's metrics page, summed over its labels."""
        page = await asyncio.to_thread(_fetch, f"{self.url(gateway)}/metrics")
        own = f"headrace_gateway_{name}"
        lines = page.decode().splitlines()
        assert any(line.startswith(f"# TYPE {own} ") for line in lines), f"no {own}"
        return sum(
            float(line.split()[-1]) for line in lines if line.startswith((f"{own} ", f"{own}{{"))
        )

    async def ask(self, body: dict[str, Any], *, gateway: int = 0, **headers: str) -> Any:
        """Return the answer to a chat request; errors too."""
        request = urllib.request.Request(  # noqa: S310 - http on loopback
            f"{self.url(gateway)}/v1/chat/completions",
            data=json.dumps({"model": self.service} | body).encode(),
            headers=headers,
        )
        return json.loads(await asyncio.to_thread(_fetch, request))


def _fetch(request: urllib.request.Request | str) -> bytes:
    try:
        with urllib.request.urlopen(request, timeout=START_S) as response:  # noqa: S310 - http on loopback
            body: bytes = response.read()
    except urllib.error.HTTPError as error:
        return error.read()
    return body
