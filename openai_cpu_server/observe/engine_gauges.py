"""Gauges of the engine, which are read when Prometheus asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from openai_cpu_server.contract.engine import Engine, EngineState, EngineStatus
from openai_cpu_server.contract.messages import KVStats
from openai_cpu_server.contract.request import Priority


class EngineGauges(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        status, kv, info = self._engine.status(), self._engine.kv_stats(), self._engine.info
        yield _gauge(
            "ocs_engine_ready", "1: requests can be computed now.", status.state is EngineState.READY
        )
        yield _gauge(
            "ocs_memory_resident_bytes",
            "Resident memory of this process and the engine's, model included.",
            status.rss_bytes,
        )
        yield from _requests(status)
        yield from _pool(kv)
        yield from _cache(kv, info.kv_bytes_per_token if info else 0)


def _requests(status: EngineStatus) -> Iterator[Metric]:
    running = GaugeMetricFamily(
        "ocs_requests_running", "Sequences in the engine's slots.", labels=("priority",)
    )
    waiting = GaugeMetricFamily(
        "ocs_requests_waiting", "Sequences that wait for a slot.", labels=("priority",)
    )
    for priority in Priority:
        running.add_metric([priority.label], status.running[priority.label])
        waiting.add_metric([priority.label], status.waiting[priority.label])
    yield running
    yield waiting


def _pool(kv: KVStats | None) -> Iterator[Metric]:
    yield _gauge("ocs_kv_pool_blocks", "Blocks of the KV pool.", kv.pool_blocks if kv else 0)
    yield _gauge(
        "ocs_kv_pool_blocks_used",
        "Blocks of the KV pool that sequences hold.",
        kv.pool_blocks_used if kv else 0,
    )
    yield _gauge(
        "ocs_kv_pool_blocks_shared",
        "Blocks of the KV pool that more than one sequence holds.",
        kv.pool_blocks_shared if kv else 0,
    )


def _cache(kv: KVStats | None, token_bytes: int) -> Iterator[Metric]:
    capacity, used = (kv.cache_capacity_blocks, kv.cache_blocks) if kv else (0, 0)
    block_bytes = kv.cache_block_tokens * token_bytes if kv else 0
    yield _gauge("ocs_prefix_cache_capacity_blocks", "Blocks that the prefix cache may hold.", capacity)
    yield _gauge("ocs_prefix_cache_blocks", "Blocks that the prefix cache holds.", used)
    yield _gauge(
        "ocs_prefix_cache_capacity_bytes", "Bytes that the prefix cache may hold.", capacity * block_bytes
    )
    yield _gauge("ocs_prefix_cache_bytes", "Bytes that the prefix cache holds.", used * block_bytes)
    yield CounterMetricFamily(
        "ocs_prefix_cache_evictions",
        "Blocks of the prefix cache that made room for others, since the engine's last start.",
        kv.cache_evictions if kv else 0,
    )


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, documentation, value)
