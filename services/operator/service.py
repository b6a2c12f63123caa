"""The operator's shell: follows records, hosts and engines, decides a pass at a time while it leads, carries out what was decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from services.operator.counts import Counts
from services.operator.fleet import (
    Asked,
    Refusal,
    Remove,
    Start,
    Stop,
    Wanted,
    World,
    WriteStatus,
)
from services.operator.memory import Memory
from services.operator.reconcile import reconcile
from services.operator.settings import OperatorSettings
from shared import logs
from shared.bus import Bus
from shared.entry import Entry
from shared.errors import BusError, UserError
from shared.health import HealthState
from shared.ids import OperatorId, ServiceName
from shared.jetstream import wait
from shared.lease import Lease
from shared.messages import (
    HEARTBEAT_S,
    DesiredRecord,
    EngineHeartbeat,
    HostAnswer,
    HostHeartbeat,
    LeaseRecord,
    Message,
    OperatorHeartbeat,
    ServiceRecord,
    StartReplica,
    StatusRecord,
    StopReplica,
)
from shared.record_view import View
from shared.records import READ_AGAIN_S, Records
from shared.runtime import Runtime
from shared.spec.model import LLMService
from shared.spec.reading import from_document

ROLE = "operator"
KINDS = (ServiceRecord, DesiredRecord, StatusRecord, LeaseRecord)
HEARD_S = 2 * HEARTBEAT_S
"""A host that was heard so lately lives, and tells what it runs now."""
OLD_VIEW_S = 3 * READ_AGAIN_S
"""Records that could not be read for so long are not acted on."""
MAX_NAMES = 10


class Operator:
    """One operator process. Made inside the running loop; `run` once."""

    def __init__(
        self,
        settings: OperatorSettings,
        bus: Bus,
        records: Records,
        *,
        me: OperatorId,
        wall_us: Callable[[], int],
        url: str = "",
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._records = records
        self._me = me
        self._wall_us = wall_us
        self._url = url
        self._clock = asyncio.get_running_loop().time
        self._log = logs.get("operator").bind(operator=me)
        self._memory = Memory()
        self._lease = Lease(
            records,
            role=ROLE,
            holder=me,
            ttl_s=settings.lease_s,
            at_least=lambda: self._memory.highest_epoch,
        )
        self._changed = asyncio.Event()
        self._listens_since_s = self._clock()
        self._specs: dict[ServiceName, tuple[int, LLMService | None, str]] = {}
        """By service: the state of the record that was read, and what it said or why it says nothing."""
        self._orders = asyncio.Semaphore(settings.orders)
        self._group: asyncio.TaskGroup | None = None
        self._beat = 0
        self._obstacle = "it starts"
        """Why it does not act; empty: it does."""
        self.counts = Counts()
        self.services: View[ServiceRecord] | None = None
        self.desired: View[DesiredRecord] | None = None
        self.status: View[StatusRecord] | None = None

    @override
    def __repr__(self) -> str:
        return f"<Operator {self._me} leads={self.leads} epoch={self._lease.epoch}>"

    @property
    def leads(self) -> bool:
        """Whether it acts."""
        return self._lease.holds

    async def run(self, runtime: Runtime) -> None:
        """Operate until the runtime says stop, then leave the lead to others; replicas stay as they are."""
        group = self._group = runtime.group
        kept = group.create_task(
            self._records.keep(*KINDS, replicas=self._settings.bucket_replicas), name="keep records"
        )
        self.services = await self._records.watch(ServiceRecord, self._on_record, group=group)
        self.desired = await self._records.watch(DesiredRecord, self._on_record, group=group)
        self.status = await self._records.watch(StatusRecord, self._on_record, group=group)
        await self._bus.subscribe(HostHeartbeat, self._on_host)
        await self._bus.subscribe(EngineHeartbeat, self._on_engine)
        self._bus.on_loss(self._on_loss)
        leading = group.create_task(
            self._lease.run(runtime.stop, self._on_lead), name="operator lease"
        )
        beating = group.create_task(self._beat_forever(), name="operator heartbeat")
        runtime.health.move(HealthState.READY)
        self._log.info("operator_ready")
        while not runtime.stop.is_set():
            self._changed.clear()
            await self._pass()
            stopping = group.create_task(runtime.stop.wait())
            looking = group.create_task(wait(self._changed, self._settings.look_s))
            await asyncio.wait({stopping, looking}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            looking.cancel()
        await leading
        for view in self._views:
            if view is not None:
                view.stop()
        beating.cancel()
        kept.cancel()

    # --- what is heard

    def _on_record(self, _: View[ServiceRecord] | View[DesiredRecord] | View[StatusRecord]) -> None:
        self._changed.set()

    def _on_host(self, beat: HostHeartbeat) -> None:
        if self._memory.heard_host(beat, now=self._clock()):
            self._changed.set()

    def _on_engine(self, beat: EngineHeartbeat) -> None:
        if self._memory.heard_engine(beat, now=self._clock()):
            self._changed.set()

    def _on_lead(self) -> None:
        self._memory.forget_orders()
        self._listen_anew()
        self._changed.set()

    def _on_loss(self, _: str) -> None:
        """Heartbeats may have been missed: silence before this says nothing."""
        self._listen_anew()

    # --- a pass

    async def _pass(self) -> None:
        now = self._clock()
        if self._bus.is_answering:
            self._memory.prune(now=now, listens_since_s=self._listens_since_s)
        self._obstacle = self._what_is_in_the_way(now)
        if self._obstacle:
            return
        world = self._world(now)
        actions = reconcile(world)
        self.counts.passed(self._clock() - now, actions)
        for action in actions:
            if isinstance(action, Start | Stop):
                self._order(action, now)
        written = [action for action in actions if isinstance(action, WriteStatus | Remove)]
        await asyncio.gather(*(self._write(action) for action in written))

    def _what_is_in_the_way(self, now: float) -> str:
        """Return why we may not act now; empty: nothing."""
        if not self._bus.is_answering:
            return "the bus is away"
        if not self.leads:
            return "another one leads, or the lease is out of reach"
        # Read since we listen: what was read before may be of another time.
        oldest_s = min(OLD_VIEW_S, now - self._listens_since_s)
        if any(view is None or view.age_s > oldest_s for view in self._views):
            return "the records have not been read lately"
        return "" if self._has_listened(now) else "it listens to hosts first"

    @property
    def _views(self) -> tuple[View[Any] | None, ...]:
        return self.services, self.desired, self.status

    def _listen_anew(self) -> None:
        """From now on silence counts, and records are read again."""
        self._listens_since_s = self._clock()
        for view in self._views:
            if view is not None:
                view.look()

    def _world(self, now: float) -> World:
        """Return what is known."""
        services, desired, status = self.services, self.desired, self.status
        assert services is not None
        assert desired is not None
        assert status is not None
        memory = self._memory
        return World(
            now_s=now,
            unix_us=self._wall_us(),
            epoch=self._lease.epoch,
            listens_since_s=self._listens_since_s,
            unreadable=services.unreadable | desired.unreadable,
            services={
                ServiceName(name): self._wanted(entry, desired, status)
                for name, entry in services.entries.items()
            },
            hosts=memory.hosts,
            engines=memory.engines,
            starts=memory.starts,
            stops=memory.stops,
            refusals=memory.refusals,
        )

    def _has_listened(self, now: float) -> bool:
        """Whether all hosts that live have told what they run."""
        if now - self._listens_since_s >= self._settings.listen_s:
            return True
        heard = sum(now - host.heard_s <= HEARD_S for host in self._memory.hosts.values())
        return 0 < self._settings.hosts <= heard

    def _wanted(
        self,
        entry: Entry[ServiceRecord],
        desired: View[DesiredRecord],
        status: View[StatusRecord],
    ) -> Wanted:
        service = entry.record.service
        known = self._specs.get(service)
        if known is None or known[0] != entry.revision:
            try:
                known = (entry.revision, from_document(entry.record.spec), "")
            except UserError as error:
                known = (entry.revision, None, str(error))
            self._specs[service] = known
        wish, state = desired.entries.get(service), status.entries.get(service)
        return Wanted(
            record=entry.record,
            spec=known[1],
            problem=known[2],
            desired=None if wish is None else wish.record.replicas,
            status=None if state is None else state.record,
        )

    # --- what is done

    def _order(self, action: Start | Stop, now: float) -> None:
        asked = Asked(host=action.host, service=action.service, revision=action.revision, at_s=now)
        orders = self._memory.starts if isinstance(action, Start) else self._memory.stops
        orders[action.name] = asked
        assert self._group is not None
        self._group.create_task(self._carry_out(action), name=f"order {action.name}")

    async def _carry_out(self, action: Start | Stop) -> None:
        async with self._orders:
            if not self.leads:
                return
            try:
                answer = await self._bus.request(
                    self._message(action), timeout_s=self._settings.order_timeout_s
                )
            except BusError as error:
                self.counts.failed += 1
                self._log.warning("order_unanswered", replica=action.name, reason=str(error))
                return
        assert isinstance(answer, HostAnswer)
        verb = "start" if isinstance(action, Start) else "stop"
        if answer.accepted:
            self._log.info("ordered", verb=verb, replica=action.name, host=action.host)
        else:
            self._refused(action, answer)

    def _message(self, action: Start | Stop) -> StartReplica | StopReplica:
        epoch = self._lease.epoch
        if isinstance(action, Stop):
            drain_s = self._settings.drain_s
            return StopReplica(host=action.host, epoch=epoch, name=action.name, drain_s=drain_s)
        return StartReplica(
            host=action.host,
            epoch=epoch,
            name=action.name,
            service=action.service,
            revision=action.revision,
            spec=action.spec,
            fingerprint=action.fingerprint,
        )

    def _refused(self, action: Start | Stop, answer: HostAnswer) -> None:
        self.counts.refused[answer.refused or "other"] += 1
        self._log.warning(
            "order_refused", replica=action.name, refused=answer.refused, reason=answer.reason
        )
        orders = self._memory.starts if isinstance(action, Start) else self._memory.stops
        orders.pop(action.name, None)
        refusal = Refusal(reason=answer.reason or answer.refused, at_s=self._clock())
        self._memory.refusals[action.service, action.host] = refusal
        self._changed.set()

    async def _write(self, action: WriteStatus | Remove) -> None:
        if not self.leads:
            return
        try:
            async with self._orders:
                if isinstance(action, WriteStatus):
                    await self._write_status(action.record)
                else:
                    await self._remove(action.service)
        except BusError as error:
            self.counts.failed += 1
            self._log.info("record_not_written", reason=str(error))
            for view in self._views:
                if view is not None:
                    view.look()

    async def _write_status(self, record: StatusRecord) -> None:
        assert self.status is not None
        known = self.status.entries.get(record.service)
        before = known.record.phase if known is not None else None
        is_spoilt = record.service in self.status.unreadable
        expected = known.revision if known is not None else None if is_spoilt else 0
        revision = await self._records.put(record, expected=expected)
        self.status.entries[record.service] = Entry(record, revision)
        if before is not record.phase:
            self._log.info(
                "phase", service=record.service, phase=record.phase, reason=record.reason
            )

    async def _remove(self, service: ServiceName) -> None:
        """Forget a service: its record last, so that who follows us ends what we begin. One that was applied anew meanwhile stays."""
        kinds: tuple[type[Message], ...] = (DesiredRecord, StatusRecord, ServiceRecord)
        for kind, view in zip(kinds, (self.desired, self.status, self.services), strict=True):
            assert view is not None
            entry = view.entries.get(service)
            if entry is not None:
                await self._records.delete(kind, service, expected=entry.revision)
                view.entries.pop(service, None)
        self._specs.pop(service, None)
        self._log.info("service_removed", service=service)

    # --- what is said

    async def _beat_forever(self) -> None:
        while True:
            try:
                self._bus.publish(self.heartbeat())
            except BusError as error:
                self._log.warning("heartbeat_unsent", reason=str(error))
            await asyncio.sleep(HEARTBEAT_S)

    def heartbeat(self) -> OperatorHeartbeat:
        """Return how the operator is, as others see it."""
        self._beat += 1
        status = self.status.entries.values() if self.status is not None else ()
        return OperatorHeartbeat(
            operator=self._me,
            beat=self._beat,
            leads=self.leads,
            epoch=self._lease.epoch,
            services=len(self.services.entries) if self.services is not None else 0,
            replicas=sum(len(entry.record.replicas) for entry in status),
            url=self._url,
            reason=self._obstacle or self._unread(),
        )

    def _unread(self) -> str:
        """Return which services are left as they are because nobody can read their records."""
        names = sorted({key for view in self._views if view is not None for key in view.unreadable})
        return f"cannot read the records of {', '.join(names[:MAX_NAMES])}" if names else ""
