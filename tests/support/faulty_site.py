"""A gateway and two engines (real processes, fake backend), each behind a link of its own to a real NATS server.

Puts one fault at a time into the midst of a load, and measures what comes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from shared.client import HeadraceClient
from shared.ids import EngineId, GatewayId, StreamNo
from shared.messages import EngineHeartbeat, EngineState, Resend, Resent
from shared.natsbus import NatsBus
from shared.settings import NatsSettings
from tests.support.buses import in_thread, until
from tests.support.fault_proxy import FaultProxy
from tests.support.fault_report import FaultReport
from tests.support.gateway_process import Site
from tests.support.nats_server import NatsServer
from tests.support.stream_load import Outcome, StreamLoad, tally

STREAMS = 112
AT_ONCE = 16
TOKENS = 100
FIELDS: dict[str, Any] = {"ignore_eos": True, "seed": 5}
"""The fake's words depend on the seed at any temperature."""
BODY = FIELDS | {"max_tokens": TOKENS, "temperature": 0}
ENGINES = 2
FAKE = ("--fake-step-s", "0.005")
RECOVER_S = 30.0
"""Longest wait for anything that is measured."""
CALM_S = 15.0
POLL_S = 0.05
PROMPTS = [f"prompt {number % 8}" for number in range(STREAMS)]
LONG = {"max_tokens": 6000, "ignore_eos": True}

NOBODY = GatewayId("gnobody")

Step = Callable[[], None]
"""Begins or ends a fault; may block."""


class Fault(NamedTuple):
    """What happens to the bus, for how long, and to which load."""

    name: str
    begin: Step
    end: Step
    for_s: float
    at_once: int = AT_ONCE
    tokens: int = TOKENS


class FaultySite:
    """The processes, and what can be done to their ways to the server. Make it with `faulty_site`."""

    def __init__(self, server: NatsServer, proxy: FaultProxy, site: Site) -> None:
        self.server = server
        self.proxy = proxy
        self.site = site
        self.gateway = proxy.add("gateway")
        self._expected: dict[int, dict[str, Outcome]] = {}
        self.engines = [proxy.add(f"engine-{number}") for number in range(ENGINES)]

    def start(self, *gateway_options: str) -> None:
        """Start all processes."""
        self.site.add_gateway("--nats-url", self.gateway.url, *gateway_options)
        for link in self.engines:
            self.site.add_engine("--nats-url", link.url, *FAKE)

    def load(self, tokens: int = TOKENS) -> StreamLoad:
        """Return a load of greedy streams."""
        return StreamLoad(self.site.url(), model=self.site.service, max_tokens=tokens, **FIELDS)

    async def expected(self, tokens: int = TOKENS) -> dict[str, Outcome]:
        """Return the undisturbed answers; to be called first while nothing is wrong."""
        if tokens not in self._expected:
            self._expected[tokens] = await self.load(tokens).expected(PROMPTS)
        return self._expected[tokens]

    async def suffer(self, fault: Fault) -> FaultReport:
        """Put a fault into the midst of a load; return the figures once all answers have ended."""
        expected, load = await self.expected(fault.tokens), self.load(fault.tokens)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(load.run(PROMPTS, concurrency=fault.at_once))
            begun = fault.at_once * fault.tokens // 8
            await until(lambda: load.texts >= begun, timeout_s=RECOVER_S)
            report = FaultReport(scenario=fault.name, in_flight=load.open)
            connects = self.proxy.connects
            await in_thread(fault.begin)
            watch = group.create_task(self._until_noticed())
            await asyncio.sleep(fault.for_s)
            await in_thread(fault.end)
            answered = group.create_task(self._until_answered())
            whole = group.create_task(self._until_whole())
            report.recovered_s, report.whole_s = await answered, await whole
            outcomes = await running
            report.take(outcomes, tally(outcomes, expected))
            watch.cancel()
        report.noticed_s = None if watch.cancelled() else watch.result()
        report.connects = self.proxy.connects - connects
        report.tell()
        return report

    async def check_calm(self) -> None:
        """Fail unless all figures return to zero, at the gateway and at the engines."""
        site = self.site
        for name in ("open_streams", "in_flight_choices", "open_calls"):
            await site.until_figure(name, 0, timeout_s=CALM_S)
        async with self.watching() as (_, beats):
            await until(
                lambda: (
                    len(beats) == ENGINES
                    and all(
                        (EngineState.READY, 0, 0, 0)
                        == (beat.state, beat.running, beat.waiting, beat.outstanding_tokens)
                        for beat in beats.values()
                    )
                ),
                timeout_s=CALM_S,
            )

    async def check_whole(self) -> None:
        """Fail unless every way over the bus works (submit, cancel, tokens, resend, heartbeats, the NATS API) and all is calm then."""
        body = BODY | {"messages": [{"role": "user", "content": "all well?"}]}
        async with HeadraceClient(self.server.url) as client:
            http = await self.site.ask(body)
            over_nats = await client.chat(self.site.service, body, timeout_s=10)
            async with aclosing(client.stream_chat(self.site.service, body | LONG)) as stream:
                await anext(stream)
        assert http["choices"] == over_nats["choices"]
        await self._check_resends()
        await self.check_calm()
        assert ENGINES == await self.site.figure("engines_ready")
        assert 1 == await self.site.figure("gateways")

    async def _check_resends(self) -> None:
        async with self.watching() as (bus, beats):
            await until(lambda: len(beats) == ENGINES)
            for engine in list(beats):
                question = Resend(engine=engine, gateway=NOBODY, stream=StreamNo(1), from_seq=0)
                answer = await bus.request(question, timeout_s=CALM_S)
                assert isinstance(answer, Resent)
                assert answer.gone

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[tuple[NatsBus, dict[EngineId, EngineHeartbeat]]]:
        """Yield a bus straight to the server, and the latest heartbeat of each engine, kept up to date."""
        latest: dict[EngineId, EngineHeartbeat] = {}

        def on_beat(beat: EngineHeartbeat) -> None:
            latest[beat.engine] = beat

        async with asyncio.TaskGroup() as group:
            settings = NatsSettings(url=self.server.url)
            bus = await NatsBus.connect(settings, group=group, name="watcher")
            try:
                await bus.subscribe(EngineHeartbeat, on_beat, service=self.site.service)
                yield bus, latest
            finally:
                await bus.close(drain_s=0.5)

    async def _until_noticed(self) -> float:
        clock = asyncio.get_running_loop().time
        began_at = clock()
        while await self.site.is_ready() and await self._engines_ready() == ENGINES:  # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(POLL_S)
        return clock() - began_at

    async def _until_answered(self) -> float:
        clock = asyncio.get_running_loop().time
        began_at = clock()
        async with asyncio.timeout(RECOVER_S):
            while not (await self.load().run(PROMPTS[:1], concurrency=1))[0].is_whole:  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(POLL_S)
        return clock() - began_at

    async def _until_whole(self) -> float:
        clock = asyncio.get_running_loop().time
        began_at = clock()
        async with asyncio.timeout(RECOVER_S):
            while not await self.site.is_ready() or await self._engines_ready() < ENGINES:  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(POLL_S)
        return clock() - began_at

    async def _engines_ready(self) -> float:
        return await self.site.figure("engines_ready")


@contextmanager
def faulty_site(folder: Path, *gateway_options: str, seed: int = 0) -> Iterator[FaultySite]:
    """Start a server, the proxy and all processes; end them."""
    server = NatsServer(folder / "nats")
    server.start()
    try:
        with FaultProxy(server.port, seed=seed) as proxy, Site(server, folder) as site:
            made = FaultySite(server, proxy, site)
            made.start(*gateway_options)
            asyncio.run(made.site.ready())
            yield made
    finally:
        server.kill()
