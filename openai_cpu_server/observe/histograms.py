"""A Prometheus histogram that takes whole distributions, so that tokens are not counted one by one."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from openai_cpu_server.observe.distribution import Distribution


class DistributionHistogram(Collector):
    def __init__(self, name: str, documentation: str, labels: tuple[str, ...]) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._series: dict[tuple[str, ...], Distribution] = {}

    def merge(self, labels: tuple[str, ...], distribution: Distribution) -> None:
        self._series.setdefault(labels, Distribution()).merge(distribution)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, distribution in self._series.items():
            buckets = [(str(bound), float(count)) for bound, count in distribution.cumulative()]
            family.add_metric(labels, [*buckets, ("+Inf", float(distribution.num))], distribution.sum_s)
        yield family
