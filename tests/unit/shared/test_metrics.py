"""The metrics page."""

from __future__ import annotations

from shared.messages import Cancel
from shared.metrics import BusCollector, new_registry, render
from tests.support.buses import MemoryWorld, World, until


def test_the_page_tells_build_process_and_bus():
    async def scenario(world: World) -> None:
        bus = await world.bus()
        registry = new_registry("gateway")
        registry.register(BusCollector(bus))
        await bus.subscribe(Cancel, print)
        bus._wire.send("hr.engine.e1.cancel", b"\xc1")
        await until(lambda: bus.counts.undecodable)

        page = render(registry).decode()

        assert 'headrace_build_info{service="gateway",version="' in page
        assert "process_resident_memory_bytes" in page
        assert "headrace_bus_connected 1.0" in page
        assert "headrace_bus_undecodable_total 1.0" in page

    MemoryWorld().run(scenario)


def test_two_registries_do_not_meet():
    first, second = new_registry("a"), new_registry("b")

    assert b'service="b"' not in render(first)
    assert b'service="a"' not in render(second)
