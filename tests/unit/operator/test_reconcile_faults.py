"""Whatever happens to hosts, engines, orders and the operator: each pass keeps its bounds, and once it is over the fleet is as declared."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.operator.fleet import Action, Start, Stop, World
from services.operator.observed import observe
from services.operator.reconcile import reconcile
from shared.ids import HostId, ServiceName
from shared.messages import ReplicaPhase
from shared.spec.model import EngineSpec, LLMService, ScalingPolicy
from tests.support.fleet_model import STEP_S, FleetModel
from tests.support.specs import service

CHAT = ServiceName("chat")


def chat(least: int = 3, *, seed: int = 1, surge: int = 1, unavailable: int = 0) -> LLMService:
    """A service of the fake engine; another seed is another revision."""
    return service(
        scaling=ScalingPolicy(
            min_replicas=least, max_replicas=9, max_surge=surge, max_unavailable=unavailable
        ),
        engine=EngineSpec(backend="fake", settings={"fake-seed": str(seed)}),
    )


class Story:
    """A fleet to which things happen."""

    def __init__(self, seed: int, *, surge: int, unavailable: int) -> None:
        self.fleet = FleetModel(seed, hosts=3)
        self.draw = random.Random(seed)
        self._bounds = {"surge": surge, "unavailable": unavailable}
        self._changes, self._hosts = 1, 3
        self.fleet.declare(chat(**self._bounds))

    def happen(self, event: str) -> None:
        """Let one thing happen."""
        EVENTS[event](self)

    def _a_host(self) -> HostId:
        return self.draw.choice(self.fleet.hosts())

    def nothing(self) -> None:
        """Let time pass."""

    def kill_host(self) -> None:
        """End a host, unless it is the last one."""
        if len(self.fleet.hosts()) > 1:
            host = self._a_host()
            self.fleet.kill_host(host)
            self.fleet.silent.discard(host)
            self.fleet.hung.discard(host)

    def new_host(self) -> None:
        """Bring a host, unless there are many."""
        if len(self.fleet.hosts()) < 5:
            self.fleet.add_host(HostId(f"h{self._hosts}"))
            self._hosts += 1

    def crash(self) -> None:
        """End a replica's process."""
        if found := self.fleet.processes(CHAT):
            self.fleet.crash(self.draw.choice(found).name)

    def cut_off(self) -> None:
        """Take a host and its engines off the network."""
        self.fleet.silent.add(self._a_host())

    def hang(self) -> None:
        """Let a host say nothing, while its engines go on."""
        self.fleet.hung.add(self._a_host())

    def lose_bus(self) -> None:
        """Take the operator off the network."""
        self.fleet.is_away = True

    def reconnect(self) -> None:
        """Let all hear each other again."""
        self.fleet.come_back()
        self.fleet.silent, self.fleet.hung = set(), set()

    def restart_operator(self) -> None:
        """Let the operator begin anew."""
        self.fleet.forget()

    def scale(self) -> None:
        """Want another number of replicas."""
        self.fleet.desired[CHAT] = self.draw.randint(1, 7)

    def change(self) -> None:
        """Declare another revision."""
        self._changes += 1
        self.fleet.declare(chat(seed=self._changes, **self._bounds))

    def lose_orders(self) -> None:
        """Let orders be lost, or no longer."""
        self.fleet.lost_share = 0.4 - self.fleet.lost_share

    def lose_beats(self) -> None:
        """Let beats of engines be lost, or no longer."""
        self.fleet.mute_share = 0.6 - self.fleet.mute_share

    def step(self) -> int:
        """Run a pass, hold it to its bounds, let time pass; return the number of orders."""
        fleet, actions = self.fleet, []
        if fleet.acts:
            world = fleet.world()
            actions = reconcile(world)
            assert actions == reconcile(shuffled(world, self.draw))
            check(world, actions)
        for action in actions:
            fleet.act(action)
        fleet.tick()
        return sum(isinstance(action, Start | Stop) for action in actions)

    def calm(self) -> None:
        """Let nothing happen any more, until the fleet is at rest."""
        fleet = self.fleet
        self.happen("reconnect")
        fleet.lost_share = fleet.mute_share = 0.0
        quiet = 0
        for _ in range(600):
            quiet = 0 if self.step() else quiet + 1
            if quiet >= 50:
                return
        raise AssertionError("it does not come to rest")


EVENTS: dict[str, Callable[[Story], None]] = {
    found.__name__: found
    for found in (
        Story.nothing,
        Story.kill_host,
        Story.new_host,
        Story.crash,
        Story.cut_off,
        Story.hang,
        Story.lose_bus,
        Story.reconnect,
        Story.restart_operator,
        Story.scale,
        Story.change,
        Story.lose_orders,
        Story.lose_beats,
    )
}


def shuffled(world: World, draw: random.Random) -> World:
    """Return the same world, heard in another order."""
    changes = {}
    for field in ("services", "hosts", "engines", "starts", "stops", "refusals"):
        items = list(getattr(world, field).items())
        draw.shuffle(items)
        changes[field] = dict(items)
    return msgspec.structs.replace(world, **changes)


def check(world: World, actions: list[Action]) -> None:
    """Hold one pass to what is promised at every step."""
    wanted = world.services[CHAT]
    assert wanted.spec is not None
    starts = [action for action in actions if isinstance(action, Start)]
    stops = {(action.host, action.name) for action in actions if isinstance(action, Stop)}
    present = observe(world).replicas.get(CHAT, [])
    names = [one.name for one in present] + [one.name for one in starts]
    assert len(set(names)) == len(names)
    for start in starts:
        assert world.is_heard(world.hosts[start.host])
    scaling = wanted.spec.scaling
    assert not starts or len(names) <= wanted.replicas + scaling.max_surge
    before = {one.name for one in present if one.serves}
    after = {one.name for one in present if one.serves and (one.host, one.name) not in stops}
    assert len(after) >= min(len(before), wanted.replicas - scaling.max_unavailable)
    if before != after:
        assert len(after) >= wanted.replicas - scaling.max_unavailable
    for one in present:
        if one.phase is ReplicaPhase.RUNNING and (one.host, one.name) in stops:
            assert len(after) >= wanted.replicas - scaling.max_unavailable


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    bounds=st.sampled_from([(1, 0), (0, 1), (2, 1)]),
    events=st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.integers(1, 30)), max_size=14),
)
def test_whatever_happens_bounds_hold_and_the_fleet_ends_as_declared(seed, bounds, events):
    story = Story(seed, surge=bounds[0], unavailable=bounds[1])
    fleet = story.fleet
    for event, steps in events:
        story.happen(event)
        for _ in range(steps):
            story.step()
    story.calm()
    processes = fleet.processes(CHAT)
    wanted = fleet.world().services[CHAT].replicas
    assert len({one.name for one in processes}) == len(processes) == wanted
    assert {one.revision for one in processes} == {fleet.records[CHAT].revision}
    assert fleet.serving(CHAT) == wanted
    assert fleet.status[CHAT].is_settled
    assert reconcile(fleet.world()) == []


def settled(seed: int = 1, **bounds: int) -> Story:
    story = Story(seed, surge=bounds.get("surge", 1), unavailable=bounds.get("unavailable", 0))
    story.calm()
    return story


@pytest.mark.parametrize("away_s", [5, 30, 90])
def test_replicas_of_a_host_that_only_hangs_are_not_replaced_while_they_serve(away_s: int):
    story = settled()
    fleet = story.fleet
    fleet.hung = {HostId("h0")}
    assert sum(story.step() for _ in range(int(away_s / STEP_S))) == 0
    fleet.forget()
    assert sum(story.step() for _ in range(int(away_s / STEP_S))) == 0


@pytest.mark.parametrize("away_s", [5, 30, 90])
def test_after_an_outage_a_host_that_comes_back_last_keeps_its_replicas(away_s: int):
    story = settled()
    fleet = story.fleet
    fleet.is_away = True
    orders = sum(story.step() for _ in range(int(away_s / STEP_S)))
    fleet.come_back()
    fleet.silent = {HostId("h1")}
    orders += sum(story.step() for _ in range(int(8 / STEP_S)))
    fleet.silent = set()
    orders += sum(story.step() for _ in range(100))
    assert orders == 0


def test_a_lost_host_gets_no_orders_and_one_that_returns_gives_up_what_was_replaced():
    story = settled()
    fleet = story.fleet
    fleet.silent = {HostId("h0")}
    story.step()
    for _ in range(60):
        world = fleet.world()
        is_lost = not world.is_heard(world.hosts[HostId("h0")])
        orders = [one for one in reconcile(world) if isinstance(one, Start | Stop)]
        assert not is_lost or all(one.host != "h0" for one in orders)
        story.step()
    assert len(fleet.processes(CHAT)) == 4
    before = fleet.serving(CHAT)
    fleet.silent = set()
    story.calm()
    assert (before, fleet.serving(CHAT)) == (4, 3)


def test_engines_that_miss_beats_in_the_middle_of_a_change_cost_no_replica():
    story = settled()
    fleet = story.fleet
    story.happen("change")
    fleet.broken.add(fleet.records[CHAT].revision)
    fleet.mute_share = 0.7
    for _ in range(300):
        story.step()
    assert fleet.serving(CHAT) == 3


def test_a_service_whose_record_cannot_be_read_is_left_alone():
    fleet = settled().fleet
    world = fleet.world()
    assert (
        reconcile(msgspec.structs.replace(world, services={}, unreadable=frozenset({CHAT}))) == []
    )
    assert len(reconcile(msgspec.structs.replace(world, services={}))) == 3
