"""What is declared over something that is no record."""

from __future__ import annotations

import asyncio

from shared.declared import Declared
from shared.membus import MemoryBus, MemoryHub
from shared.messages import DesiredRecord, ServicePhase, ServiceRecord, StatusRecord
from shared.records import Records
from shared.vloop import run_virtual
from tests.support.specs import service


def test_a_service_whose_record_cannot_be_read_is_declared_anew_and_counts_on():
    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            bus = await MemoryBus.join(MemoryHub(), group=group, name="console")
            records = await Records.open(bus)
            await records.ensure(ServiceRecord, DesiredRecord, StatusRecord)
            spec = service()
            running = StatusRecord(service=spec.name, phase=ServicePhase.RUNNING, generation=7)
            await records.put(running)
            bus.wire.send(f"$KV.hr-services.{spec.name}", b"{")

            declared = Declared(records)
            applied = await declared.apply(spec, by="me")

            assert (True, 8) == (applied.is_new, applied.generation)
            assert 8 == (await declared.get(spec.name)).record.generation
            assert () == (await declared.apply(spec, by="me")).changes
            await bus.close()

    run_virtual(scenario())
