"""What a store counts, read by Prometheus. Labels are bounded: two mirrors, two kinds of job, the states and troubles of a mirror."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from services.kvstore.counts import SECONDS, Times
from services.kvstore.fairness import Kind
from services.kvstore.lifecycle import MirrorState, Trouble
from services.kvstore.mirror import Mirror
from services.kvstore.store import Store

PREFIX = "headrace_kv_"


class StoreCollector(Collector):
    """Makes the page when it is asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @override
    def collect(self) -> Iterator[Metric]:
        store = self._store
        counts, index = store.counts, store.catalogue.index
        yield _gauge("values", "Values stored.", len(index))
        yield _gauge("used_bytes", "What they take on each disk.", index.used_bytes)
        yield _gauge("budget_bytes", "What they may take.", index.budget_bytes)
        yield _gauge("engines", "Engines connected.", len(store.sessions.all))
        yield _by_kind("jobs", "Jobs taken.", counts.jobs)
        yield _by_kind("job_values", "Values loaded, or kept.", counts.values)
        yield _by_kind("job_missing", "Values not loaded, or not kept.", counts.missing)
        yield _by_kind("job_bytes", "Bytes loaded, or kept.", counts.bytes)
        yield _by_kind("job_refused", "Values refused: too much waited.", counts.full)
        yield _histogram("job_seconds", "Jobs, without their wait.", counts.times)
        yield _histogram("job_wait_seconds", "Waits of jobs for their turn.", counts.waits)
        waiting = {kind: store.queue.waiting(kind) for kind in Kind}
        yield _labelled("queue_parts", "Parts of jobs that wait.", waiting)
        bytes_waiting = {kind: store.queue.waiting_bytes(kind) for kind in Kind}
        yield _labelled("queue_bytes", "Their bytes.", bytes_waiting)
        yield _total("evicted", "Values that went to make room.", counts.evicted)
        yield _total("corrupt", "Values that did not check out.", counts.corrupt)
        yield _total("rerouted", "Values read elsewhere: their mirror dropped.", counts.rerouted)
        yield _total("rebuilt", "Values copied from one mirror to another.", store.rebuilder.copied)
        yield _total(
            "engines_rejected", "Engines that could not be served.", store.sessions.rejected
        )
        yield _total(
            "engines_cut_off", "Engines cut off by their own fault.", store.sessions.cut_off
        )
        yield from _mirrors(store.mirrors)


def _mirrors(mirrors: list[Mirror]) -> Iterable[Metric]:
    labels = ["mirror"]
    state = GaugeMetricFamily(
        PREFIX + "mirror_state", "1 for the state that it is in.", labels=["mirror", "state"]
    )
    trouble = GaugeMetricFamily(
        PREFIX + "mirror_trouble", "1 for what is wrong with it.", labels=["mirror", "trouble"]
    )
    serves = GaugeMetricFamily(PREFIX + "mirror_serves", "Whether it serves.", labels=labels)
    drops = CounterMetricFamily(PREFIX + "mirror_drops", "Times it was dropped.", labels=labels)
    files = GaugeMetricFamily(PREFIX + "mirror_file_bytes", "What its files take.", labels=labels)
    free = GaugeMetricFamily(PREFIX + "mirror_free_bytes", "What its disk has left.", labels=labels)
    read = CounterMetricFamily(PREFIX + "mirror_read_bytes", "Bytes read.", labels=labels)
    written = CounterMetricFamily(PREFIX + "mirror_written_bytes", "Bytes written.", labels=labels)
    for mirror in mirrors:
        number = str(mirror.number)
        for one in MirrorState:
            state.add_metric([number, one.value], float(mirror.state is one))
        for what in Trouble:
            if what is not Trouble.NONE:
                trouble.add_metric([number, what.value], float(mirror.trouble is what))
        serves.add_metric([number], float(mirror.serves))
        drops.add_metric([number], mirror.drops)
        files.add_metric([number], sum(mirror.sizes.file_bytes.values()))
        free.add_metric([number], mirror.sizes.free_bytes)
        read.add_metric([number], mirror.read.bytes)
        written.add_metric([number], mirror.written.bytes)
    return (state, trouble, serves, drops, files, free, read, written)


def _total(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value)


def _by_kind(name: str, text: str, values: Mapping[Kind, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=["kind"])
    for kind, value in values.items():
        family.add_metric([kind.value], value)
    return family


def _labelled(name: str, text: str, values: Mapping[Kind, int]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=["kind"])
    for kind, value in values.items():
        family.add_metric([kind.value], value)
    return family


def _histogram(name: str, text: str, times: Mapping[Kind, Times]) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text, labels=["kind"])
    for kind, of in times.items():
        passed, buckets = 0, []
        for bound, count in zip((*map(str, SECONDS), "+Inf"), of.buckets, strict=True):
            passed += count
            buckets.append((bound, float(passed)))
        family.add_metric([kind.value], buckets, of.total_s)
    return family
