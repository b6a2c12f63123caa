"""L3 as vLLM sees it: a secondary tier whose values are in the store of the host. Runs in the scheduler's process; nothing here waits.

A lookup is a probe of a set. A load that takes too long is a failure at once, and its slots stay aside; while the store owes
such an answer, everything is a miss. What failed for a request is not tried again for it. What is saved is decided by `Admission`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from typing_extensions import override
from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingSpec,
    OffloadKey,
    OffloadPolicy,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from services.engine.adapters.kv_link import StoreLink
from services.engine.adapters.kv_namespace import fields_of
from services.engine.adapters.kv_primary import HostTier
from services.engine.kv.admission import Admission, Interest
from services.engine.kv.jobs import Jobs, Patience, Settled
from services.engine.kv.on_disk import OnDisk
from services.engine.settings import KvSettings
from services.engine.steps.step import KvMoves
from shared import logs
from shared.kv import namespace
from shared.kv.client import Client
from shared.kv.protocol import KEYS_A_PACKET, VERSION, Hello

LOADS_A_KEY = 2
"""How often, on average, the values of one request are loaded for it: others may push them out of L2 before it has used them."""
SETTLED_S = 2.0
"""How long after connecting the store may still be telling what it has."""
POLL_S = 0.01
"""Time between two looks at jobs that are waited for."""

_log = logs.get("vllm")


class Asking(msgspec.Struct):
    """What the tier keeps of a request."""

    interest: Interest
    keys: Sequence[OffloadKey]
    """Of its prompt."""
    moved: set[OffloadKey] = msgspec.field(default_factory=set)
    """Loaded or saved for it: counted as used by the store itself."""
    failed: set[OffloadKey] = msgspec.field(default_factory=set)
    asked: set[OffloadKey] = msgspec.field(default_factory=set)
    """Never more than fit into L2 beside each other: else the end of a long prefix would push out its beginning, and that its end."""
    loads: int = 0
    jobs: int = 0
    """Loads under way."""


class StoreTier(SecondaryTierManager):
    """Used by its name."""

    medium = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        *,
        settings: Mapping[str, Any],
        told: Mapping[str, str],
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self._settings = kv = msgspec.convert(settings, KvSettings)
        self._config = offloading_spec.config
        self._told = told
        self._slots = primary_kv_view.shape[0] if primary_kv_view.shape else 0
        self._admission = Admission(kv.min_tokens, seen_blocks=kv.seen_blocks)
        self.jobs = Jobs(
            value_bytes=self.block_size_bytes,
            patience=Patience(kv.load_s, kv.load_bytes_per_s),
            keys_a_part=KEYS_A_PACKET,
        )
        self._load_bound = int(kv.load_share * self._slots)
        self._save_bound = int(kv.save_share * self._slots)
        self._asking: dict[str, Asking] = {}
        self._expected: dict[str, Asking] = {}
        self._loading: dict[int, Asking] = {}
        """By vLLM's job."""
        self._wanted = 0
        """Values that lookups of this step have promised."""
        self._link: StoreLink | None = None
        self._client: Client | None = None
        self._era = 0
        self._left: dict[int, Client] = {}
        """Connections that have ended and may still touch slots, by era."""
        self._moves = KvMoves()
        self._on_disk = OnDisk()
        self._connected_at = 0.0
        self.settled_s = SETTLED_S

    @override
    def __repr__(self) -> str:
        return f"<StoreTier {self._client!r} {self.jobs!r}>"

    def attach(self, host: HostTier, region_fd: int) -> None:
        """Begin to connect, with L2 and its file."""
        self._host = host
        host.aside = self.jobs.aside
        self._link = StoreLink(self._settings.store, region_fd, self._hello)

    def _hello(self) -> Hello:
        told = fields_of(self._config, self._told, value_bytes=self.block_size_bytes)
        return Hello(
            version=VERSION,
            engine=self._config.engine_id,
            namespace=namespace.digest(told),
            told=told,
            value_bytes=self.block_size_bytes,
            slots=self._slots,
        )

    def add_moves(self, moves: KvMoves) -> None:
        """Add what this tier did since the last call, and say how it stands."""
        mine, self._moves = self._moves, KvMoves()
        moves.to_disk += mine.to_disk
        moves.from_disk += mine.from_disk
        moves.failed += mine.failed
        moves.dropped += mine.dropped
        moves.given_up += mine.given_up
        moves.aside = len(self.jobs.aside) * self.block_size_bytes
        moves.disk_blocks = -1 if self._client is None else len(self._client.keys)

    # --- requests

    def expect(self, request: str, prompt_tokens: int, hashes: Sequence[bytes]) -> None:
        """Learn what vLLM does not tell tiers of a request that comes next. `hashes`: of the whole hashed blocks of its prompt."""
        cache = self._config.cache
        interest = self._admission.look(
            prompt_tokens, hashes, tokens_per_hash=cache.tokens_per_hash
        )
        keys = [
            make_offload_key(each, group.group_id)
            for group in self._config.groups
            for each in _every(
                hashes, group.tokens_per_block * cache.blocks_per_chunk // cache.tokens_per_hash
            )
        ]
        self._expected[request] = Asking(interest, keys)

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Have blocks that are in a faster tier offered again where they should be on disk and are not."""
        asking = self._expected.pop(req_context.req_id, None) or Asking(Interest(), ())
        self._asking[req_context.req_id] = asking
        self._on_disk.there(key for key in asking.keys if key in self._keys)
        is_worth_it = asking.interest.seen_tokens or self._admission.is_long(
            asking.interest.prompt_tokens
        )
        client = self._client
        if (
            is_worth_it
            and client is not None
            and any(key not in client.keys for key in asking.keys)
        ):
            return RequestOffloadingContext(policy=OffloadPolicy.REQUEST_LEVEL)
        return RequestOffloadingContext()

    @override
    def on_request_finished(self, req_context: ReqContext) -> None:
        asking = self._asking.pop(req_context.req_id, None)
        if asking is None or self._client is None:
            return
        # That a faster tier had them is use, too; else the store would forget what is used most.
        keys = self._keys
        used = [key for key in asking.keys if key in keys and key not in asking.moved]
        if used:
            self._client.touch(used)

    # --- loads

    def is_loading(self, request: str) -> bool:
        """Return whether values are on their way for a request."""
        asking = self._asking.get(request)
        return asking is not None and asking.jobs > 0

    @property
    def _keys(self) -> Collection[bytes]:
        return () if self._client is None else self._client.keys

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        client = self._client
        if client is None or key not in client.keys:
            return LookupResult.MISS
        asking = self._asking.get(req_context.req_id)
        if asking is None or not self._may_ask(asking, key):
            return LookupResult.MISS
        busy = self.jobs.load_slots + len(self.jobs.aside) + self._wanted
        if busy >= self._load_bound or not client.is_alive or self.jobs.is_silent(self._era):
            return LookupResult.MISS
        self._wanted += 1
        asking.asked.add(key)
        return LookupResult.HIT

    def _may_ask(self, asking: Asking, key: OffloadKey) -> bool:
        """Return whether a key may be loaded for a request: not where it failed, nor without end where others push it out of L2."""
        return (
            key not in asking.failed
            and (key in asking.asked or len(asking.asked) < self._load_bound)
            and asking.loads < LOADS_A_KEY * self._load_bound
        )

    @override
    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._wanted = 0

    @override
    def submit_load(self, job_metadata: TransferJob) -> None:
        keys = list(job_metadata.keys)
        asking = self._asking.get(job_metadata.req_context.req_id)
        if asking is not None:
            # Until it is known otherwise: what does not come is not asked for again.
            asking.failed.update(keys)
            asking.loads += len(keys)
            asking.jobs += 1
            self._loading[job_metadata.job_id] = asking
        self._submit(job_metadata, keys, job_metadata.chunk_ids.tolist(), is_load=True)

    # --- saves

    @override
    def submit_store(self, job_metadata: TransferJob) -> None:
        asking = self._asking.get(job_metadata.req_context.req_id)
        saved: list[tuple[int, OffloadKey, int]] = []
        if asking is not None and self._client is not None:
            wanted = self._worth_saving(job_metadata, asking)
            is_silent = self.jobs.is_silent(self._era)
            # The beginning of a prefix is of use without its end.
            saved = [] if is_silent else wanted[: max(0, self._save_bound - self.jobs.save_slots)]
            self._moves.dropped += (len(wanted) - len(saved)) * self.block_size_bytes
            asking.moved.update(key for _, key, _ in saved)
        keys, slots = [key for _, key, _ in saved], [slot for _, _, slot in saved]
        self._submit(job_metadata, keys, slots, is_load=False)

    def _worth_saving(self, job: TransferJob, asking: Asking) -> list[tuple[int, OffloadKey, int]]:
        """Return where each block ends in the request, its key and its slot, in the order of the request."""
        there, saving = self._keys, self.jobs.saving
        found = []
        for key, slot in zip(job.keys, job.chunk_ids.tolist(), strict=True):
            end = job.req_context.get_offload_key_position(key) or 0
            if key in there or key in saving or not self._admission.admits(asking.interest, end):
                continue
            found.append((end, key, slot))
        return sorted(found)

    # --- jobs

    def _submit(
        self, job: TransferJob, keys: list[OffloadKey], slots: list[int], *, is_load: bool
    ) -> None:
        parts = self.jobs.begin(
            job.job_id, keys, slots, is_load=is_load, era=self._era, now=time.monotonic()
        )
        client = self._client
        for part in parts:
            give = None if client is None else (client.load if is_load else client.save)
            if give is None or not give(part.number, part.keys, part.slots):
                self.jobs.refuse(part.number)

    @override
    def get_finished_jobs(self) -> Iterable[JobResult]:
        self._look()
        return [self._result(settled) for settled in self.jobs.take_settled()]

    def _look(self) -> None:
        """Take in what happened outside."""
        if self._client is not None:
            self._take_done(self._client)
            if not self._client.is_alive:
                self._leave(self._client)
        for era, client in list(self._left.items()):
            if client.has_let_go:
                self.jobs.let_go(era)
                del self._left[era]
        if self._client is None and self._link is not None:
            self._client = self._link.take()
            self._era += self._client is not None
            self._connected_at = time.monotonic()
        self._moves.given_up += self.jobs.give_up_overdue(time.monotonic())
        if free := self.jobs.take_free():
            self._host.give_back(free)

    @override
    def take_events(self) -> Iterable[OffloadingEvent]:
        """Tell which blocks came to the disk and which are gone; of a store that is away nothing is known."""
        client = self._client
        if client is not None and time.monotonic() > self._connected_at + self.settled_s:
            self._on_disk.look(client.keys)
        for keys, is_gone in zip(self._on_disk.take(), (False, True), strict=True):
            if keys:
                yield OffloadingEvent(
                    keys=list(map(OffloadKey, keys)), medium=self.medium, removed=is_gone
                )

    def _take_done(self, client: Client) -> None:
        for done in client.poll():
            self.jobs.done(done.job, done.missing)

    def _leave(self, client: Client) -> None:
        self._take_done(client)
        _log.warning("kv_store_lost", why=client.why_ended, jobs=len(client.under_way))
        self.jobs.lose(self._era)
        self._left[self._era] = client
        self._client = None

    def _result(self, settled: Settled) -> JobResult:
        size = len(settled.kept) * self.block_size_bytes
        lost = len(settled.missing) * self.block_size_bytes
        self._on_disk.there(settled.kept)
        if settled.is_load:
            self._moves.from_disk += size
            self._moves.failed += lost
            if (asking := self._loading.pop(settled.job, None)) is not None:
                asking.jobs -= 1
                asking.failed.difference_update(settled.kept)
                asking.moved.update(settled.kept)
        else:
            self._moves.to_disk += size
            self._moves.dropped += lost
        return JobResult(
            settled.job,
            not settled.missing,
            successful_keys=settled.kept or None,
            transfer_bytes=size,
        )

    @override
    def drain_jobs(self) -> None:
        """Wait for jobs under way, for a while; then give them up, whose slots stay aside."""
        ends_at = time.monotonic() + self._settings.drain_s
        self._look()
        while any(self.jobs) and time.monotonic() < ends_at:
            time.sleep(POLL_S)
            self._look()
        self.jobs.give_up_all()
        self._wanted = 0

    @override
    def shutdown(self) -> None:
        """Close the connection; what the store still writes goes to memory that nobody reads."""
        if self._link is not None:
            self._link.close()
            self._link = None
        for client in (self._client, *self._left.values()):
            if client is not None:
                client.close()
        self._client = None


def _every(hashes: Sequence[bytes], step: int) -> Sequence[bytes]:
    """Return the hash at the end of each run of so many: it stands for all of them."""
    return hashes[step - 1 :: step]
