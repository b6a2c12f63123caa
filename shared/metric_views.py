"""Metrics seen another way: with the labels of the process that has them, and under the names that runbooks know them by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from typing_extensions import override

from shared.metric_aliases import ALIASES, Alias, Page


class Labelled(Collector):
    """The metrics of another collector, each with further labels. A label that a sample has already stays as it is."""

    def __init__(self, inner: Collector, labels: Callable[[], Mapping[str, str]]) -> None:
        self._inner = inner
        self._labels = labels

    @override
    def collect(self) -> Iterator[Metric]:
        labels = self._labels()
        for family in self._inner.collect():
            family.samples = [s._replace(labels={**labels, **s.labels}) for s in family.samples]
            yield family


class Aliased(Collector):
    """The metrics of another collector, and after each the one that has the same values under an older name."""

    def __init__(self, inner: Collector, page: Page) -> None:
        self._inner = inner
        self._aliases = {
            alias.source.removesuffix("_total"): alias for alias in ALIASES if alias.page == page
        }

    @override
    def collect(self) -> Iterator[Metric]:
        for family in self._inner.collect():
            yield family
            alias = self._aliases.get(family.name)
            if alias is not None:
                yield _renamed(family, alias)


def _renamed(family: Metric, alias: Alias) -> Metric:
    name = alias.name.removesuffix("_total")
    renamed = Metric(name, alias.meaning, family.type)
    renamed.samples = [*_samples(family, name, alias.copies)]
    return renamed


def _samples(family: Metric, name: str, copies: Mapping[str, str]) -> Iterable[Sample]:
    for sample in family.samples:
        own = name + sample.name.removeprefix(family.name)
        copied = {label: sample.labels.get(source, "") for label, source in copies.items()}
        yield sample._replace(name=own, labels={**sample.labels, **copied})
