"""When a platform is ready: NATS greets, the gateway says `/ready`, engines and tracer beat, and a real answer came back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from services.console.openai_http import AnswerFailed, OpenAiHttp, text_of
from shared.bus import Bus
from shared.errors import UserError
from shared.ids import GatewayId
from shared.messages import EngineHeartbeat, EngineState, GatewayHeartbeat, TracerHeartbeat
from shared.processes.supervisor import Kept

POLL_S = 0.05
NATS_START_S = 10.0
WARM_UP_PROMPT = "Say hello in five words."
WARM_UP_TOKENS = 16
WARM_UP_S = 120.0
OK = 200


async def nats_greets(port: int) -> None:
    """Return when a NATS server greets on loopback. Raises `UserError` after `NATS_START_S`."""
    try:
        async with asyncio.timeout(NATS_START_S):
            while not await _greeted(port):  # noqa: ASYNC110 -- another process's start has no event
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise UserError(f"the NATS server did not start within {NATS_START_S:.0f} s") from error


async def _greeted(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        return (await reader.readline()).startswith(b"INFO ")
    finally:
        writer.close()


class FleetWatch:
    """Follows heartbeats, marks the engines that serve, and counts the gateways that see them all."""

    def __init__(
        self,
        engines: dict[str, Kept],
        tracers: list[Kept],
        *,
        gateways: int,
        say: Callable[[str], None],
    ) -> None:
        self._engines = engines
        self._tracers = tracers
        self._gateways_wanted = gateways
        self._gateways: set[GatewayId] = set()
        self._say = say
        self._all_ready = asyncio.Event()
        self._told: set[tuple[str, str]] = set()

    async def follow(self, bus: Bus) -> None:
        """Subscribe; the watch goes on as long as the bus is open."""
        await bus.subscribe(EngineHeartbeat, self._on_beat)
        await bus.subscribe(GatewayHeartbeat, self._on_gateway)
        await bus.subscribe(TracerHeartbeat, self._on_tracer)

    def _on_gateway(self, beat: GatewayHeartbeat) -> None:
        if beat.engines >= len(self._engines):
            self._gateways.add(beat.gateway)
            self._look()

    def _on_tracer(self, _: TracerHeartbeat) -> None:
        for tracer in self._tracers:  # there is one at most
            tracer.ready = True
        self._look()

    def _on_beat(self, beat: EngineHeartbeat) -> None:
        kept = self._engines.get(beat.name)
        if kept is None:
            return
        if beat.state is EngineState.FAILED and (beat.engine, beat.reason) not in self._told:
            self._told.add((beat.engine, beat.reason))
            self._say(f"{beat.name} failed: {beat.reason}")
        kept.ready = beat.state is EngineState.READY
        self._look()

    def _look(self) -> None:
        are_seen = len(self._gateways) >= self._gateways_wanted
        if are_seen and all(kept.ready for kept in (*self._engines.values(), *self._tracers)):
            self._all_ready.set()

    @property
    def ready_count(self) -> int:
        """How many engines serve."""
        return sum(kept.ready for kept in self._engines.values())

    def what_lacks(self) -> str:
        """Say what a platform that is not ready waits for, with the last words of the first that does not serve."""
        waits = [
            (name, kept)
            for name, kept in (*self._engines.items(), *(("tracer", one) for one in self._tracers))
            if not kept.ready
        ]
        if not waits:
            return f"{len(self._gateways)} of {self._gateways_wanted} gateways see all engines"
        first = waits[0][1].last_words() or "(nothing)"
        names = ", ".join(name for name, _ in waits)
        return f"not serving: {names}; the end of the log of {waits[0][0]}:\n{first}"

    async def all_ready(self) -> None:
        """Return when every engine has been seen ready at the same time and by all gateways, and the tracer listens."""
        await self._all_ready.wait()


async def gateway_ready(url: str) -> None:
    """Return when the gateway says that it can serve; the caller sets the deadline."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as session:
        while True:
            try:
                async with session.get(f"{url}/ready") as response:
                    if response.status == OK:
                        return
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(POLL_S)


async def first_answer(url: str, *, model: str, api_key: str | None) -> str:
    """Return what the model answers to a first prompt. Raises `UserError` where it does not answer."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": WARM_UP_PROMPT}],
        "max_tokens": WARM_UP_TOKENS,
        "temperature": 0.0,
    }
    async with OpenAiHttp(url, api_key=api_key, timeout_s=WARM_UP_S) as server:
        try:
            return "".join([text_of(chunk) async for chunk in server.chat_events(body)])
        except AnswerFailed as error:
            raise UserError(f"the platform is up, but does not answer: {error}") from error
