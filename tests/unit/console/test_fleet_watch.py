"""What `headrace up` makes of heartbeats: when it says that it serves, and when that it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from services.console.fleet.declare import UP, Told, declare
from services.console.fleet.plan import UpOptions
from services.console.fleet.service import service_of
from services.console.fleet.watch import FleetWatch, Parts
from shared.declared import Declared
from shared.errors import UserError
from shared.ids import GatewayId, HostId, ServiceName, TracerId
from shared.membus import MemoryBus, MemoryHub
from shared.messages import (
    DesiredRecord,
    GatewayHeartbeat,
    HostHeartbeat,
    OperatorHeartbeat,
    ReplicaPhase,
    ReplicaState,
    ServiceRecord,
    StatusRecord,
    TracerHeartbeat,
)
from shared.processes.child import ExecLauncher
from shared.processes.supervisor import Kept
from shared.records import Records
from shared.vloop import run_virtual

SERVICE = ServiceName("fake")
SETTLE_S = 0.05


def kept(name: str) -> Kept:
    return Kept(ExecLauncher(name, [], env={}, log=Path("/l")), stop_s=1.0)


def state(
    phase: ReplicaPhase, number: int = 0, *, service: str = SERVICE, **fields: object
) -> ReplicaState:
    return ReplicaState(  # type: ignore[arg-type] # fields are checked when they are sent
        name=f"{service}-{number}",
        service=ServiceName(service),
        revision="r",
        phase=phase,
        **fields,
    )


class Site:
    """A watch, and the bus that the others speak on."""

    def __init__(self, watch: FleetWatch, said: list[str], bus: MemoryBus) -> None:
        self.watch = watch
        self.said = said
        self._bus = bus

    async def host(self, *states: ReplicaState, host: str = "h1") -> None:
        self._bus.publish(HostHeartbeat(host=HostId(host), beat=1, replicas=list(states)))
        await asyncio.sleep(SETTLE_S)

    async def others(self, *, engines: int = 1) -> None:
        self._bus.publish(OperatorHeartbeat(operator="o1", beat=1))
        self._bus.publish(TracerHeartbeat(tracer=TracerId("t1"), beat=1))
        self._bus.publish(
            GatewayHeartbeat(gateway=GatewayId("g1"), beat=1, open_streams=0, engines=engines)
        )
        await asyncio.sleep(SETTLE_S)

    async def is_ready(self) -> bool:
        try:
            async with asyncio.timeout(SETTLE_S):
                await self.watch.ready()
        except TimeoutError:
            return False
        return True


def play(scenario: Callable[[Site], Awaitable[None]], *, engines: int = 1) -> None:
    async def main() -> None:
        hub, said = MemoryHub(), list[str]()
        async with asyncio.TaskGroup() as group:
            ours = await MemoryBus.join(hub, group=group, name="console")
            theirs = await MemoryBus.join(hub, group=group, name="others")
            watch = FleetWatch(
                SERVICE,
                engines=engines,
                gateways=1,
                parts=Parts(host=kept("host"), operator=kept("operator"), tracers=[kept("tracer")]),
                logs=Path("/logs"),
                say=said.append,
            )
            await watch.follow(ours)
            try:
                await scenario(Site(watch, said, theirs))
            finally:
                await ours.close()
                await theirs.close()

    run_virtual(main())


def test_it_is_ready_when_all_are_heard_and_enough_replicas_serve():
    async def scenario(site: Site) -> None:
        await site.host(state(ReplicaPhase.RUNNING), state(ReplicaPhase.STARTING, 1, step="load"))
        await site.others(engines=2)
        assert not await site.is_ready()
        assert "fake-1 is starting: load" in site.watch.what_lacks()
        await site.host(state(ReplicaPhase.RUNNING), state(ReplicaPhase.RUNNING, 1))
        assert await site.is_ready()

    play(scenario, engines=2)


def test_replicas_of_other_services_do_not_count():
    async def scenario(site: Site) -> None:
        await site.others()
        await site.host(state(ReplicaPhase.RUNNING, service="other"))
        assert not await site.is_ready()

    play(scenario)


def test_who_is_not_heard_is_named():
    async def scenario(site: Site) -> None:
        await site.host(state(ReplicaPhase.RUNNING))
        assert not await site.is_ready()
        assert "not heard: operator, tracer" == site.watch.what_lacks()

    play(scenario)


def test_a_service_that_cannot_run_ends_the_start_with_the_reason():
    async def scenario(site: Site) -> None:
        await site.host(state(ReplicaPhase.FAILED, reason="drift: other files"))
        with pytest.raises(UserError, match="fake-0 cannot run: drift") as caught:
            await site.watch.ready()
        assert "/logs/fake-0.log" in caught.value.hint

    play(scenario)


def test_the_third_end_before_it_served_ends_the_start_with_its_last_words():
    async def scenario(site: Site) -> None:
        for restarts in range(3):
            reason = "exit code 2; the end of its log:\nunknown setting"
            ended = state(ReplicaPhase.WAITING, restarts=restarts, retry_s=0.5, reason=reason)
            await site.host(ended)
        assert 2 == len(site.said)
        assert site.said[0].startswith("fake-0 ended (exit code 2;")
        with pytest.raises(
            UserError, match=r"ended 3 times before it was ready.*\nunknown setting"
        ):
            await site.watch.ready()

    play(scenario)


def test_once_it_serves_ends_are_only_said():
    async def scenario(site: Site) -> None:
        await site.others()
        await site.host(state(ReplicaPhase.RUNNING))
        assert await site.is_ready()
        await site.host(state(ReplicaPhase.WAITING, restarts=5, reason="exit code 1"))
        await site.host(state(ReplicaPhase.FAILED, restarts=5, reason="drift"))
        assert [
            "fake-0 ended (exit code 1); starting it again in 0.0 s",
            "fake-0 cannot run: drift",
        ] == site.said

    play(scenario)


def test_another_services_fault_does_not_end_the_start():
    async def scenario(site: Site) -> None:
        await site.host(state(ReplicaPhase.FAILED, service="other", reason="no such model"))
        assert not await site.is_ready()
        assert ["other-0 cannot run: no such model"] == site.said

    play(scenario)


def test_steps_of_making_a_model_are_said_once_each():
    async def scenario(site: Site) -> None:
        for step in ("fetch: checking", "fetch: checking", "fetch: converting", "check"):
            await site.host(state(ReplicaPhase.PREPARING, step=step))
        assert ["fake-0: fetch: checking", "fake-0: fetch: converting"] == site.said

    play(scenario)


def on_records(scenario: Callable[[Records], Awaitable[None]]) -> None:
    async def main() -> None:
        hub = MemoryHub()
        async with asyncio.TaskGroup() as group:
            bus = await MemoryBus.join(hub, group=group, name="console")
            await scenario(await Records.open(bus))
            await bus.close()

    run_virtual(main())


FAKE = service_of(UpOptions(fake=True))
OTHER = service_of(UpOptions(fake=True, service="other"))


def test_a_second_up_replaces_what_the_first_declared_whatever_its_name():
    async def scenario(records: Records) -> None:
        await records.ensure(ServiceRecord, DesiredRecord, StatusRecord)
        assert Told(is_ours=True, others=()) == await declare(Declared(records), OTHER, engines=1)
        assert Told(is_ours=True, others=()) == await declare(Declared(records), FAKE, engines=3)
        assert Told(is_ours=True, others=()) == await declare(Declared(records), FAKE, engines=2)
        found = await records.list(ServiceRecord)
        desired = await records.get(DesiredRecord, "fake")

        assert {"fake": False, "other": True} == {
            name: entry.record.deleted for name, entry in found.items()
        }
        assert 1 == found["fake"].record.generation
        assert desired is not None
        assert 2 == desired.record.replicas

    on_records(scenario)


def test_what_was_applied_stays_and_is_told():
    async def scenario(records: Records) -> None:
        await records.ensure(ServiceRecord, DesiredRecord, StatusRecord)
        for name in ("fake", "other"):
            spec = FAKE if name == "fake" else OTHER
            await declare(Declared(records), spec, engines=1)
            entry = await records.get(ServiceRecord, name)
            assert entry is not None
            applied = {"service": entry.record.service, "spec": entry.record.spec}
            await records.put(ServiceRecord(**applied, generation=4, revision="r", by="ada"))
        declared = await declare(Declared(records), FAKE, engines=3)
        kept_one = await records.get(ServiceRecord, "fake")

        assert Told(is_ours=False, others=(OTHER.name,)) == declared
        assert kept_one is not None
        assert 4 == kept_one.record.generation

    on_records(scenario)


def test_records_are_written_as_soon_as_their_buckets_are_there():
    async def scenario(records: Records) -> None:
        async with asyncio.TaskGroup() as group:
            declaring = group.create_task(declare(Declared(records), FAKE, engines=1))
            await asyncio.sleep(1.0)
            assert not declaring.done()
            await records.ensure(ServiceRecord, DesiredRecord, StatusRecord)
        entry = await records.get(ServiceRecord, "fake")

        assert entry is not None
        assert UP == entry.record.by

    on_records(scenario)
