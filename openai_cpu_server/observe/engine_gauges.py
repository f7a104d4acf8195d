"""Gauges of the engines, which are read when Prometheus asks. Each has the model's name as a label."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from openai_cpu_server.contract.engine import Engine, EngineState, EngineStatus
from openai_cpu_server.contract.messages import KVStats
from openai_cpu_server.contract.request import Priority


class GaugeReading(NamedTuple):
    """One engine at one moment."""

    model: str
    status: EngineStatus
    kv: KVStats | None
    token_bytes: int

    @classmethod
    def of(cls, model: str, engine: Engine) -> GaugeReading:
        info = engine.info
        return cls(model, engine.status(), engine.kv_stats(), info.kv_bytes_per_token if info else 0)


class EngineGauges(Collector):
    def __init__(self, engines: Callable[[], Iterable[tuple[str, Engine]]]) -> None:
        """`engines`: those of now, with the names of their models."""
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        readings = [GaugeReading.of(model, engine) for model, engine in self._engines()]
        yield _memory(readings)
        yield _states(readings)
        yield _gauge(
            readings,
            "ocs_engine_ready",
            "1: requests can be computed now.",
            lambda one: one.status.state is EngineState.READY,
        )
        yield _gauge(
            readings,
            "ocs_engine_resident_bytes",
            "Resident memory of the model's engine process, the model included.",
            lambda one: one.status.engine_rss_bytes,
        )
        yield from _requests(readings)
        yield from _pool(readings)
        yield from _cache(readings)


def _memory(readings: list[GaugeReading]) -> Metric:
    """The API process is counted once, with whichever engine."""
    engines = sum(one.status.engine_rss_bytes for one in readings)
    first = readings[0].status
    return GaugeMetricFamily(
        "ocs_memory_resident_bytes",
        "Resident memory of this process and the engines', models included.",
        first.rss_bytes - first.engine_rss_bytes + engines,
    )


def _states(readings: list[GaugeReading]) -> Metric:
    family = GaugeMetricFamily(
        "ocs_model_state",
        "1 for the state that the model is in, 0 for all others.",
        labels=("model", "state"),
    )
    for one in readings:
        for state in EngineState:
            family.add_metric([one.model, state.value], one.status.state is state)
    return family


def _requests(readings: list[GaugeReading]) -> Iterator[Metric]:
    labels = ("model", "priority")
    running = GaugeMetricFamily("ocs_requests_running", "Sequences in the engine's slots.", labels=labels)
    waiting = GaugeMetricFamily("ocs_requests_waiting", "Sequences that wait for a slot.", labels=labels)
    for one in readings:
        for priority in Priority:
            running.add_metric([one.model, priority.label], one.status.running[priority.label])
            waiting.add_metric([one.model, priority.label], one.status.waiting[priority.label])
    yield running
    yield waiting


def _pool(readings: list[GaugeReading]) -> Iterator[Metric]:
    yield _of_kv(readings, "ocs_kv_pool_blocks", "Blocks of the KV pool.", lambda kv: kv.pool_blocks)
    yield _of_kv(
        readings,
        "ocs_kv_pool_blocks_used",
        "Blocks of the KV pool that sequences hold.",
        lambda kv: kv.pool_blocks_used,
    )
    yield _of_kv(
        readings,
        "ocs_kv_pool_blocks_shared",
        "Blocks of the KV pool that more than one sequence holds.",
        lambda kv: kv.pool_blocks_shared,
    )


def _cache(readings: list[GaugeReading]) -> Iterator[Metric]:
    def capacity(kv: KVStats) -> int:
        return kv.cache_capacity_blocks

    def used(kv: KVStats) -> int:
        return kv.cache_blocks

    name = "ocs_prefix_cache"
    yield _of_kv(readings, f"{name}_capacity_blocks", "Blocks that the prefix cache may hold.", capacity)
    yield _of_kv(readings, f"{name}_blocks", "Blocks that the prefix cache holds.", used)
    yield _of_kv_bytes(readings, f"{name}_capacity_bytes", "Bytes that the prefix cache may hold.", capacity)
    yield _of_kv_bytes(readings, f"{name}_bytes", "Bytes that the prefix cache holds.", used)
    evictions = CounterMetricFamily(
        f"{name}_evictions",
        "Blocks of the prefix cache that made room for others, since the engine's last start.",
        labels=("model",),
    )
    for one in readings:
        evictions.add_metric([one.model], one.kv.cache_evictions if one.kv else 0)
    yield evictions


def _of_kv(
    readings: list[GaugeReading], name: str, documentation: str, value_of: Callable[[KVStats], float]
) -> Metric:
    return _gauge(readings, name, documentation, lambda one: value_of(one.kv) if one.kv else 0)


def _of_kv_bytes(
    readings: list[GaugeReading], name: str, documentation: str, blocks_of: Callable[[KVStats], int]
) -> Metric:
    def num_bytes(one: GaugeReading) -> int:
        return blocks_of(one.kv) * one.kv.cache_block_tokens * one.token_bytes if one.kv else 0

    return _gauge(readings, name, documentation, num_bytes)


def _gauge(
    readings: list[GaugeReading], name: str, documentation: str, value_of: Callable[[GaugeReading], float]
) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=("model",))
    for one in readings:
        family.add_metric([one.model], value_of(one))
    return family
