"""What a gateway makes of the engines that are there, that are full, or that it has not heard yet."""

from __future__ import annotations

import asyncio

from tests.support.gateway_world import GatewayWorld, call, play


def test_a_new_gateway_opens_its_doors_when_it_knows_the_engines():
    async def scenario(world: GatewayWorld) -> None:
        seen: list[int] = []

        class Watched:
            url = ""

            async def start(self) -> None:
                seen.append(world.gateways[-1].lookout.ready())

            async def stop_taking(self) -> None: ...

            async def stop(self) -> None: ...

            def tick(self) -> None: ...

        await world.add_gateway(also=[Watched()])
        await world.until(lambda: seen)
        await world.add_engine(step_s=0.01)
        await world.add_gateway(also=[Watched()])
        await world.until(lambda: len(seen) == 2)

        assert [0, 1] == seen

    play(scenario)


def test_an_engine_without_room_is_no_reason_to_wait():
    async def scenario(world: GatewayWorld) -> None:
        await world.add_gateway(admission={"over_commit": 50.0})
        await world.add_engine(max_streams=1, max_waiting=1, step_s=0.01)
        for _ in range(2):
            world.start(call(max_tokens=1000))
            await asyncio.sleep(0.2)
        began = world.loop.time()

        refused = await world.answer(call())

        assert refused.error is not None
        assert (503, "overloaded") == (refused.error.status, refused.error.code)
        assert world.loop.time() - began < 0.1

    play(scenario)
