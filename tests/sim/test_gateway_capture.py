"""The console switches the capture of a service's prompts on at a gateway, reads one, and it ends by itself."""

from __future__ import annotations

import asyncio

import pytest

from shared.errors import BusError
from shared.ids import GatewayId
from shared.membus import MemoryBus
from shared.messages import Captured, CaptureQuery, CaptureState, CaptureSwitch, TextPrompt
from tests.support.gateway_world import SERVICE, GatewayWorld, call, play

LABEL = {"x-request-id": "mine"}


class Console:
    """What the command line asks."""

    def __init__(self, bus: MemoryBus, gateway: GatewayId) -> None:
        self._bus = bus
        self._gateway = gateway

    async def switch(self, seconds: float | None) -> CaptureState:
        order = CaptureSwitch(gateway=self._gateway, service=SERVICE, seconds=seconds)
        state = await self._bus.request(order, timeout_s=5.0)
        assert isinstance(state, CaptureState)
        return state

    async def find(self, request: str) -> Captured:
        query = CaptureQuery(gateway=self._gateway, request=request)
        answer = await self._bus.request(query, timeout_s=5.0)
        assert isinstance(answer, Captured)
        return answer


async def console_of(world: GatewayWorld) -> Console:
    service = await world.add_gateway()
    await world.add_engine()
    bus = await MemoryBus.join(world.hub, group=world.group, name="console")
    return Console(bus, service._gateway)


def test_a_request_is_kept_only_while_the_capture_lasts():
    async def scenario(world: GatewayWorld) -> None:
        console = await console_of(world)
        await world.answer(call("before"), headers=LABEL)
        before = await console.find("mine")

        on = await console.switch(60.0)
        got = await world.answer(call("within"), headers=LABEL)
        within = await console.find("mine")
        by_id = await console.find(got.request)
        state = await console.switch(None)
        await asyncio.sleep(61.0)
        after = await console.find("mine")

        assert Captured() == before
        assert 60.0 == on.left_s
        assert within.found is not None
        assert (TextPrompt(text="within 0"),) == within.found.prompts
        assert within.found == by_id.found
        assert (1, 0) == (state.requests, state.passed_over)
        assert Captured() == after
        assert CaptureState(left_s=0.0) == await console.switch(None)

    play(scenario)


def test_switching_it_off_forgets_at_once():
    async def scenario(world: GatewayWorld) -> None:
        console = await console_of(world)
        await console.switch(60.0)
        await world.answer(call(), headers=LABEL)

        await console.switch(0.0)

        assert Captured() == await console.find("mine")

    play(scenario)


def test_a_gateway_that_is_gone_answers_nothing():
    async def scenario(world: GatewayWorld) -> None:
        bus = await MemoryBus.join(world.hub, group=world.group, name="console")

        with pytest.raises(BusError):
            await Console(bus, GatewayId("g0000000000000000")).switch(60.0)

    play(scenario)
