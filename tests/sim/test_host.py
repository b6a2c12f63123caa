"""A host on the memory bus with a driver without processes, in virtual time: what an operator sees of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from services.host.fake_driver import FakeDriver
from services.host.keeper import LOOK_S
from services.host.ports import CannotRun, NotNow
from services.host.replicas import MAX_DELAY_S, Replicas
from services.host.room import Room
from services.host.service import NEWS_S, HostService
from services.host.settings import HostSettings
from shared.ids import EngineId, HostId, ServiceName
from shared.membus import MemoryBus, MemoryHub
from shared.messages import (
    HEARTBEAT_S,
    EngineHeartbeat,
    EngineState,
    HostAnswer,
    HostHeartbeat,
    ReplicaPhase,
    ReplicaState,
    StartReplica,
    StopReplica,
)
from shared.runtime import Runtime
from shared.vloop import run_virtual

HOST = HostId("h1")
SERVICE = ServiceName("s")
SPEC: dict[str, object] = {
    "apiVersion": "llmplatform.io/v1",
    "kind": "LLMService",
    "metadata": {"name": "s"},
    "spec": {"modelRef": {"name": "m"}, "engine": {"backend": "fake"}},
}
SETTINGS = HostSettings(folder="/nowhere", models="/nowhere", name="node", drain_s=7.0)


class Site:
    """One host, and what an operator hears of it."""

    def __init__(self, driver: FakeDriver, bus: MemoryBus, engine: MemoryBus) -> None:
        self.driver = driver
        self.beats: list[tuple[float, HostHeartbeat]] = []
        self.runtime: Runtime | None = None
        self.epochs: list[int] = []
        self._bus = bus
        self._engine = engine

    async def start(self, name: str = "s-0", *, epoch: int = 1, spec: object = SPEC) -> HostAnswer:
        order = StartReplica(
            host=HOST, epoch=epoch, name=name, service=SERVICE, revision="r1", spec=spec
        )
        answer = await self._bus.request(order, timeout_s=2.0)
        assert isinstance(answer, HostAnswer)
        return answer

    async def stop(self, name: str = "s-0", *, epoch: int = 1, drain_s: float = 30.0) -> HostAnswer:
        order = StopReplica(host=HOST, epoch=epoch, name=name, drain_s=drain_s)
        answer = await self._bus.request(order, timeout_s=2.0)
        assert isinstance(answer, HostAnswer)
        return answer

    def serve(self, name: str = "s-0", engine: str = "e1") -> None:
        """Let an engine say that it is ready."""
        beat = EngineHeartbeat(
            engine=EngineId(engine),
            service=SERVICE,
            beat=1,
            state=EngineState.READY,
            backend="fake",
            name=name,
        )
        self._engine.publish(beat)

    @property
    def now(self) -> HostHeartbeat:
        """The newest heartbeat."""
        return self.beats[-1][1]

    def state(self, name: str = "s-0") -> ReplicaState | None:
        """What it says of a replica."""
        found = [state for state in self.now.replicas if state.name == name]
        return found[0] if found else None

    async def phase(self, phase: ReplicaPhase | None, name: str = "s-0") -> None:
        """Return when a replica is in this phase; none: when it is not there."""

        def is_there() -> bool:
            state = self.state(name)
            return (state.phase if state else None) is phase

        await until(is_there)


async def until(is_so: Callable[[], bool], *, within_s: float = 120.0) -> None:
    async with asyncio.timeout(within_s):
        while not is_so():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)


def play(
    scenario: Callable[[Site], Awaitable[None]],
    *,
    driver: Callable[[], FakeDriver] = FakeDriver,
    room: Room | None = None,
    epoch: int = 0,
) -> Site:
    """Run a host and a scenario beside it; the host is told to stop at the end, and drains."""

    async def main() -> Site:
        hub = MemoryHub()
        async with asyncio.TaskGroup() as group:
            names = ("host", "operator", "engine")
            ours, theirs, engine = [
                await MemoryBus.join(hub, group=group, name=name) for name in names
            ]
            site = Site(driver(), theirs, engine)
            clock = asyncio.get_running_loop().time
            await theirs.subscribe(HostHeartbeat, lambda beat: site.beats.append((clock(), beat)))
            service = HostService(
                SETTINGS,
                ours,
                site.driver,
                replicas=Replicas(room or Room(cores=(0, 1)), epoch=epoch),
                me=HOST,
                keep_epoch=site.epochs.append,
            )
            site.runtime = Runtime(group)
            running = group.create_task(service.run(site.runtime))
            await until(lambda: bool(site.beats))
            await scenario(site)
            site.runtime.stop.set()
            await running
            await asyncio.sleep(0.1)
            for bus in (ours, theirs, engine):
                await bus.close()
        return site

    return run_virtual(main())


def test_a_replica_goes_from_order_to_service_and_back():
    async def scenario(site: Site) -> None:
        assert (await site.start()).accepted
        await site.phase(ReplicaPhase.STARTING)
        site.serve()
        await site.phase(ReplicaPhase.RUNNING)
        state = site.state()
        assert state is not None
        assert (1000, "f0", 0) == (state.pid, state.fingerprint, state.restarts)
        assert (await site.stop(drain_s=3.0)).accepted
        await site.phase(None)
        assert 3.0 == site.driver.lives[0].drained_s

    site = play(scenario)

    assert [] == site.driver.running
    assert (1, 1) == (site.driver.asked, site.driver.closed)


def test_beats_come_each_half_second_and_news_no_closer_than_a_tenth():
    async def scenario(site: Site) -> None:
        await asyncio.sleep(10.0)
        for number in range(40):
            await site.start(f"s-{number}")
        await asyncio.sleep(10.0)

    site = play(scenario)
    gaps = [after[0] - before[0] for before, after in zip(site.beats, site.beats[1:], strict=False)]

    assert min(gaps[:-1]) > NEWS_S - 1e-6
    assert max(gaps) < HEARTBEAT_S + 0.05
    assert sorted(beat.beat for _, beat in site.beats) == [beat.beat for _, beat in site.beats]


def test_ten_crashes_at_the_start_are_waited_out_with_growing_pauses_and_told():
    def driver() -> FakeDriver:
        crashing = FakeDriver()
        crashing.crashes = 10
        return crashing

    async def scenario(site: Site) -> None:
        await site.start()
        await site.phase(ReplicaPhase.WAITING)
        state = site.state()
        assert state is not None
        assert "exit code 1" in state.reason
        await until(lambda: 11 == len(site.driver.lives), within_s=600.0)
        site.serve(engine="e11")
        await site.phase(ReplicaPhase.RUNNING)
        state = site.state()
        assert state is not None
        assert 10 == state.restarts

    site = play(scenario, driver=driver)
    pauses = {
        state.restarts: state.retry_s
        for _, beat in site.beats
        for state in beat.replicas
        if state.phase is ReplicaPhase.WAITING
    }

    assert 10 == len(pauses)
    assert max(pauses.values()) <= MAX_DELAY_S
    assert pauses[9] > pauses[4] > pauses[0]


def test_what_cannot_run_is_looked_at_again_and_begins_when_it_is_mended():
    def driver() -> FakeDriver:
        broken = FakeDriver()
        broken.fails = [CannotRun("drift: other files"), CannotRun("drift: yet others")]
        return broken

    async def scenario(site: Site) -> None:
        await site.start()
        await site.phase(ReplicaPhase.FAILED)
        await asyncio.sleep(LOOK_S + 5.0)
        state = site.state()
        assert state is not None
        assert (ReplicaPhase.FAILED, "drift: yet others") == (state.phase, state.reason)
        assert [] == site.driver.lives
        await asyncio.sleep(LOOK_S)
        await site.phase(ReplicaPhase.STARTING)

    site = play(scenario, driver=driver)
    phases = [state.phase for _, beat in site.beats for state in beat.replicas]
    assert {ReplicaPhase.FAILED} == set(phases[: phases.index(ReplicaPhase.STARTING)])


def test_what_cannot_run_is_looked_at_at_once_when_it_is_ordered_again():
    def driver() -> FakeDriver:
        broken = FakeDriver()
        broken.fails = [CannotRun("no such model")]
        return broken

    async def scenario(site: Site) -> None:
        await site.start()
        await site.phase(ReplicaPhase.FAILED)
        assert (await site.start()).accepted
        await asyncio.sleep(1.0)
        state = site.state()
        assert state is not None
        assert ReplicaPhase.STARTING is state.phase

    play(scenario, driver=driver)


def test_a_failed_replica_can_be_stopped():
    def driver() -> FakeDriver:
        broken = FakeDriver()
        broken.fails = [CannotRun("no such model")]
        return broken

    async def scenario(site: Site) -> None:
        await site.start()
        await site.phase(ReplicaPhase.FAILED)
        await site.stop()
        await site.phase(None)

    play(scenario, driver=driver)


def test_a_replica_can_be_stopped_while_it_is_prepared_and_while_it_waits():
    def driver() -> FakeDriver:
        slow = FakeDriver(prepare_takes_s=100.0)
        slow.fails = [NotNow("the disk is full")] * 9
        return slow

    async def scenario(site: Site) -> None:
        await site.start("s-0")
        await site.start("s-1")
        await site.phase(ReplicaPhase.PREPARING)
        await site.stop("s-0")
        await site.phase(None)
        assert "check" in {state.step for state in site.now.replicas}
        await site.phase(ReplicaPhase.WAITING, "s-1")
        await site.stop("s-1")
        await site.phase(None, "s-1")
        assert [] == site.driver.lives

    play(scenario, driver=driver)


def test_a_stale_epoch_stops_nothing_and_the_present_one_is_kept_over_a_restart():
    async def scenario(site: Site) -> None:
        assert (await site.start(epoch=9)).accepted
        await site.phase(ReplicaPhase.STARTING)
        old = await site.stop(epoch=8)
        assert ("epoch", 9) == (old.refused, old.epoch)
        assert ["s-0"] == site.driver.running

    site = play(scenario, epoch=8)

    assert [9] == site.epochs


def test_a_document_that_is_no_service_is_refused_with_what_is_wrong():
    async def scenario(site: Site) -> None:
        answer = await site.start(spec={**SPEC, "spec": {"modelReff": {"name": "m"}}})
        assert "spec" == answer.refused
        assert "modelReff" in answer.reason
        assert [] == site.now.replicas

    play(scenario)


def test_a_host_that_ends_drains_all_its_replicas_side_by_side_and_says_so():
    async def scenario(site: Site) -> None:
        for number in range(3):
            await site.start(f"s-{number}")
            await site.phase(ReplicaPhase.STARTING, f"s-{number}")

    site = play(scenario, driver=lambda: FakeDriver(drain_takes_s=5.0))
    draining = [(at, beat) for at, beat in site.beats if beat.is_draining]

    assert [7.0] * 3 == [life.drained_s for life in site.driver.lives]
    assert [] == site.driver.running
    assert [] == draining[-1][1].replicas
    assert 4.9 < draining[-1][0] - draining[0][0] < 6.0


def test_weights_that_do_not_fit_beside_others_wait_and_those_that_never_will_fail():
    def driver() -> FakeDriver:
        heavy = FakeDriver()
        heavy.weight_bytes = 2 << 30
        return heavy

    vllm = {**SPEC, "spec": {"modelRef": {"name": "m"}}}

    async def scenario(site: Site) -> None:
        await site.start("s-0", spec=vllm)
        await site.phase(ReplicaPhase.STARTING)
        await site.start("s-1", spec=vllm)
        await site.phase(ReplicaPhase.WAITING, "s-1")
        state = site.state("s-1")
        assert state is not None
        assert "GiB" in state.reason
        await site.stop("s-0")
        await site.phase(ReplicaPhase.STARTING, "s-1")

    play(scenario, driver=driver, room=Room(memory_bytes=12 << 30))

    async def too_small(site: Site) -> None:
        await site.start("s-0", spec=vllm)
        await site.phase(ReplicaPhase.FAILED)

    play(too_small, driver=driver, room=Room(memory_bytes=5 << 30))
