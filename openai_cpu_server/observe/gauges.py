"""Gauges of the engines' current state, and those that gateways route by.

llm-d's endpoint picker and the Gateway API's inference extension read the first series of a name, and SMG
adds series up. So each gateway gauge has one series for all models together. Its labels are vLLM's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from openai_cpu_server.contract.engine import Engine, EngineState, EngineStatus, LiveRequest, RequestState
from openai_cpu_server.contract.messages import KVStats
from openai_cpu_server.contract.offload import DevicePlacement
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.step import POOL_BLOCK_TOKENS
from openai_cpu_server.llama.host import Machine

_NO_KV = msgspec.convert(dict.fromkeys(KVStats.__struct_fields__, 0), KVStats)


class GaugeReading(NamedTuple):
    """State of one engine at one moment."""

    model: str
    status: EngineStatus
    kv: KVStats

    @classmethod
    def of(cls, model: str, engine: Engine) -> GaugeReading:
        return cls(model, engine.status(), engine.kv_stats() or _NO_KV)


class EngineGauges(Collector):
    def __init__(self, engines: Callable[[], Iterable[tuple[str, Engine]]]) -> None:
        """`engines`: current engines with their models' names."""
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
        yield _gauge(
            readings,
            "ocs_engine_threads",
            "Threads that compute where each gets its core.",
            lambda one: one.status.threads,
        )
        yield _gauge(
            readings,
            "ocs_engine_threads_computing",
            "Threads that have computed the last step: fewer where others use the cores.",
            lambda one: one.status.threads_computing,
        )
        yield from _cpu()
        yield from _requests(readings)
        yield from (_gauge(readings, *said) for said in _OF_KV)
        yield _evictions(readings)
        yield from (_node_gauge(readings, *said) for said in _OF_NODES)
        yield from (_device_gauge(readings, *said) for said in _OF_DEVICES)
        yield _device_bytes(readings)


_OF_NODES: tuple[tuple[str, str, Callable[[EngineStatus], float]], ...] = (
    (
        "ocs_node_ready",
        "1: the NUMA node's engine can compute now.",
        lambda one: one.state is EngineState.READY,
    ),
    (
        "ocs_node_requests_running",
        "Sequences in the slots of the NUMA node's engine.",
        lambda one: sum(one.running.values()),
    ),
    (
        "ocs_node_requests_waiting",
        "Sequences that wait for a slot there.",
        lambda one: sum(one.waiting.values()),
    ),
    (
        "ocs_node_resident_bytes",
        "Resident memory of the NUMA node's engine process, its weights included.",
        lambda one: one.engine_rss_bytes,
    ),
    (
        "ocs_node_threads_computing",
        "Threads that have computed the last step of the NUMA node's engine.",
        lambda one: one.threads_computing,
    ),
)


def _node_gauge(
    readings: list[GaugeReading], name: str, documentation: str, value_of: Callable[[EngineStatus], float]
) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=("model", "node"))
    for one in readings:
        for node, status in one.status.nodes.items():
            family.add_metric([one.model, node], value_of(status))
    return family


_OF_DEVICES: tuple[tuple[str, str, Callable[[DevicePlacement], float]], ...] = (
    (
        "ocs_device_layers",
        "Layers of the model on a device beside the CPU, the output included; 0: it was to have some.",
        lambda one: one.layers,
    ),
    (
        "ocs_device_cpu_expert_layers",
        "Layers on the device whose experts are on the CPU.",
        lambda one: one.cpu_expert_layers,
    ),
    (
        "ocs_device_free_bytes",
        "The device's free memory before the model was loaded, as its driver told it.",
        lambda one: 0 if one.device is None else one.device.free_bytes,
    ),
)


def _device_gauge(
    readings: list[GaugeReading], name: str, documentation: str, value_of: Callable[[DevicePlacement], float]
) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=("model", "role", "device"))
    for labels, placed in _placements(readings):
        family.add_metric(labels, value_of(placed))
    return family


def _device_bytes(readings: list[GaugeReading]) -> Metric:
    family = GaugeMetricFamily(
        "ocs_device_bytes",
        "What the model takes of the device's memory.",
        labels=("model", "role", "device", "part"),
    )
    for labels, placed in _placements(readings):
        parts = {
            "weights": placed.weights_bytes,
            "cells": placed.cells_bytes,
            "compute": placed.compute_bytes,
        }
        for part, num_bytes in parts.items():
            family.add_metric([*labels, part], num_bytes)
    return family


def _placements(readings: list[GaugeReading]) -> Iterator[tuple[list[str], DevicePlacement]]:
    for one in readings:
        for role, placed in (("model", one.status.placement), ("draft", one.status.draft_placement)):
            if placed is not None:
                yield [one.model, role, "" if placed.device is None else placed.device.name], placed


def _cpu() -> Iterator[Metric]:
    """Read Linux's counters for the control group of this process and the engines."""
    machine = Machine()
    yield CounterMetricFamily(
        "ocs_cpu_throttled_seconds_total",
        "Seconds of CPUs that the control groups' quota has taken away.",
        machine.throttled_s(),
    )
    yield CounterMetricFamily(
        "ocs_cpu_pressure_seconds_total",
        "Seconds in which something in the control group was ready and had no core, where Linux tells it.",
        machine.cpu_pressure_s() or 0.0,
    )


def _memory(readings: list[GaugeReading]) -> Metric:
    """Count the API process once, with whichever engine comes first."""
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


_OF_KV: tuple[tuple[str, str, Callable[[GaugeReading], float]], ...] = (
    ("ocs_kv_pool_blocks", "Blocks of the KV pool.", lambda one: one.kv.pool_blocks),
    (
        "ocs_kv_pool_blocks_used",
        "Blocks of the KV pool that sequences hold.",
        lambda one: one.kv.pool_blocks_used,
    ),
    (
        "ocs_kv_pool_blocks_shared",
        "Blocks of the KV pool that more than one sequence holds.",
        lambda one: one.kv.pool_blocks_shared,
    ),
    (
        "ocs_prefix_cache_capacity_blocks",
        "Blocks that the prefix cache may hold.",
        lambda one: one.kv.cache_capacity_blocks,
    ),
    ("ocs_prefix_cache_blocks", "Blocks that the prefix cache holds.", lambda one: one.kv.cache_blocks),
    (
        "ocs_prefix_cache_states",
        "States that the prefix cache holds (recurrent and hybrid memory).",
        lambda one: one.kv.cache_states,
    ),
    (
        "ocs_prefix_cache_capacity_bytes",
        "Bytes that the prefix cache may hold.",
        lambda one: one.kv.cache_capacity_bytes,
    ),
    (
        "ocs_prefix_cache_bytes",
        "Bytes that the prefix cache holds.",
        lambda one: one.kv.cache_bytes,
    ),
)


def _evictions(readings: list[GaugeReading]) -> Metric:
    family = CounterMetricFamily(
        "ocs_prefix_cache_evictions",
        "Blocks of the prefix cache that made room for others, since the engine's last start.",
        labels=("model",),
    )
    for one in readings:
        family.add_metric([one.model], one.kv.cache_evictions)
    return family


def _gauge(
    readings: list[GaugeReading], name: str, documentation: str, value_of: Callable[[GaugeReading], float]
) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=("model",))
    for one in readings:
        family.add_metric([one.model], value_of(one))
    return family


_ENGINE = "0"
"""vLLM's engine number. A gateway sees this server as one engine."""
_AWAY = (EngineState.ASLEEP, EngineState.FAILED, EngineState.STOPPED)
"""States without a KV pool."""


class _Pool(NamedTuple):
    total: int
    used: int
    kv_type: str


class GatewayGauges(Collector):
    def __init__(
        self, engines: Callable[[], Iterable[tuple[str, Engine]]], *, clock: Callable[[], float] = time.time
    ) -> None:
        """`engines`: current engines with their models' names, the default model first. `clock`: Unix
        time."""
        self._engines = engines
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        engines = list(self._engines())
        name = engines[0][0]
        statuses = [engine.status() for _, engine in engines]
        pools = _pools([engine for _, engine in engines])
        total, used = sum(pool.total for pool in pools), sum(pool.used for pool in pools)
        yield _gateway_gauge(
            "vllm:num_requests_running",
            "Sequences in the slots of all models, batch work included.",
            name,
            sum(sum(status.running.values()) for status in statuses),
        )
        yield _gateway_gauge(
            "vllm:num_requests_waiting",
            "Interactive sequences that wait for a slot; batch work waits for its turn, not for a machine.",
            name,
            sum(status.waiting[Priority.INTERACTIVE.label] for status in statuses),
        )
        yield _gateway_gauge(
            "vllm:kv_cache_usage_perc",
            "Share of the KV pools' blocks that sequences hold, 0 to 1.",
            name,
            used / total if total else 0.0,
        )
        yield _cache_config(total, pools[0].kv_type if pools else "")
        yield from self._adapters(engines)

    def _adapters(self, engines: list[tuple[str, Engine]]) -> Iterator[Metric]:
        """Yield nothing without adapters, as vLLM does."""
        adapted = [(name, engine) for name, engine in engines if engine.adapters()]
        if not adapted:
            return
        family = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "Unix time; the labels list the adapters with running and waiting requests, and say how many "
            "may run at once.",
            labels=("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        )
        most = sum(engine.info.max_seqs for _, engine in adapted if engine.info is not None)
        named = [(name, live) for name, engine in adapted for live in engine.requests()]
        running, waiting = _named(named, RequestState.RUNNING), _named(named, RequestState.WAITING)
        family.add_metric([str(most), running, waiting], self._clock())
        yield family


def _gateway_gauge(name: str, documentation: str, model: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=("engine", "model_name"))
    family.add_metric([_ENGINE, model], value)
    return family


def _cache_config(num_blocks: int, kv_type: str) -> Metric:
    facts = {
        "block_size": str(POOL_BLOCK_TOKENS),
        "cache_dtype": kv_type,
        "engine": _ENGINE,
        "kv_cache_size_tokens": str(num_blocks * POOL_BLOCK_TOKENS),
        "num_gpu_blocks": str(num_blocks),
    }
    family = GaugeMetricFamily(
        "vllm:cache_config_info",
        "Always 1; the labels say how large the KV pools of all loaded models are.",
        labels=tuple(facts),
    )
    family.add_metric(list(facts.values()), 1)
    return family


def _pools(engines: list[Engine]) -> list[_Pool]:
    """Return the pools of loaded models, or the planned pool of the default model."""
    loaded = [engine for engine in engines if engine.state not in _AWAY]
    return [pool for engine in loaded or engines[:1] if (pool := _pool_of(engine)) is not None]


def _pool_of(engine: Engine) -> _Pool | None:
    info, kv = engine.info, engine.kv_stats()
    if info is None or not info.kv_tokens:
        return None
    used = 0 if kv is None else kv.pool_blocks_used
    return _Pool(info.kv_tokens // POOL_BLOCK_TOKENS, used, info.kv_type)


def _named(requests: list[tuple[str, LiveRequest]], state: RequestState) -> str:
    """Return the adapters of these requests as `MODEL:NAME,MODEL:NAME`. Batch work counts only while it
    runs."""
    found = {
        f"{model}:{one.adapter}"
        for model, one in requests
        if one.adapter is not None
        and one.state is state
        and (one.state is RequestState.RUNNING or one.priority is Priority.INTERACTIVE)
    }
    return ",".join(sorted(found))
