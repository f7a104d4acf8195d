"""Gauges of engines, and those that gateways route by.

llm-d's endpoint picker and the Gateway API's inference extension read the first series of a name, and SMG
adds series up. So gateway gauges have one series for all models together, with vLLM's labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
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
    model: str
    status: EngineStatus
    kv: KVStats

    @property
    def placements(self) -> dict[tuple[str, str], DevicePlacement]:
        """Return placements by role and device name."""
        placements = {"model": self.status.placement, "draft": self.status.draft_placement}
        return {
            (role, "" if placed.device is None else placed.device.name): placed
            for role, placed in placements.items()
            if placed is not None
        }


class _Gauge(NamedTuple):
    name: str
    documentation: str
    values: Callable[[GaugeReading], Mapping[tuple[str, ...], float]]
    """Values of an engine, by the labels behind `model`."""
    labels: tuple[str, ...] = ()
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily

    def family(self, readings: list[GaugeReading]) -> Metric:
        family = self.kind(self.name, self.documentation, labels=("model", *self.labels))
        for one in readings:
            for labels, value in self.values(one).items():
                family.add_metric([one.model, *labels], value)
        return family


def _engine_gauge(name: str, documentation: str, path: str) -> _Gauge:
    """`path`: field of `GaugeReading`, such as `kv.pool_blocks`."""
    value_of = attrgetter(path)
    return _Gauge(name, documentation, lambda one: {(): value_of(one)})


def _node_gauge(name: str, documentation: str, value_of: Callable[[EngineStatus], float]) -> _Gauge:
    def values(one: GaugeReading) -> dict[tuple[str, ...], float]:
        return {(node,): value_of(status) for node, status in one.status.nodes.items()}

    return _Gauge(name, documentation, values, ("node",))


def _device_gauge(name: str, documentation: str, value_of: Callable[[DevicePlacement], float]) -> _Gauge:
    def values(one: GaugeReading) -> dict[tuple[str, ...], float]:
        return {labels: value_of(placed) for labels, placed in one.placements.items()}

    return _Gauge(name, documentation, values, ("role", "device"))


def _by_priority(counts: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(each.label,): counts[each.label] for each in Priority}


_OF_ENGINES = (
    _Gauge(
        "ocs_model_state",
        "1 for the state that the model is in, 0 for all others.",
        lambda one: {(state.value,): one.status.state is state for state in EngineState},
        ("state",),
    ),
    _Gauge(
        "ocs_engine_ready",
        "1: requests can be computed now.",
        lambda one: {(): one.status.state is EngineState.READY},
    ),
    _engine_gauge(
        "ocs_engine_resident_bytes",
        "Resident memory of the model's engine process, including the model.",
        "status.engine_rss_bytes",
    ),
    _engine_gauge("ocs_engine_threads", "Threads that compute if each has its own core.", "status.threads"),
    _engine_gauge(
        "ocs_engine_threads_computing",
        "Threads that computed the last step: fewer if other processes use the cores.",
        "status.threads_computing",
    ),
)
_OF_WORK = (
    _Gauge(
        "ocs_drafting_gain",
        "Speed with the drafts of a model or a head relative to the speed without, by the least number "
        "of sequences; 0 while drafts are paused.",
        lambda one: {(str(each.sequences),): each.gain * each.drafts for each in one.status.drafting},
        ("sequences",),
    ),
    _Gauge(
        "ocs_requests_running",
        "Sequences in the engine's slots.",
        lambda one: _by_priority(one.status.running),
        ("priority",),
    ),
    _Gauge(
        "ocs_requests_waiting",
        "Sequences that wait for a slot.",
        lambda one: _by_priority(one.status.waiting),
        ("priority",),
    ),
    _engine_gauge("ocs_kv_pool_blocks", "Blocks of the KV pool.", "kv.pool_blocks"),
    _engine_gauge(
        "ocs_kv_pool_blocks_used", "Blocks of the KV pool that sequences hold.", "kv.pool_blocks_used"
    ),
    _engine_gauge(
        "ocs_kv_pool_blocks_shared",
        "Blocks of the KV pool that more than one sequence holds.",
        "kv.pool_blocks_shared",
    ),
    _engine_gauge(
        "ocs_prefix_cache_capacity_blocks",
        "Blocks that the prefix cache may hold.",
        "kv.cache_capacity_blocks",
    ),
    _engine_gauge("ocs_prefix_cache_blocks", "Blocks that the prefix cache holds.", "kv.cache_blocks"),
    _engine_gauge(
        "ocs_prefix_cache_states",
        "States that the prefix cache holds (recurrent and hybrid memory).",
        "kv.cache_states",
    ),
    _engine_gauge(
        "ocs_prefix_cache_capacity_bytes", "Bytes that the prefix cache may hold.", "kv.cache_capacity_bytes"
    ),
    _engine_gauge("ocs_prefix_cache_bytes", "Bytes that the prefix cache holds.", "kv.cache_bytes"),
    _Gauge(
        "ocs_prefix_cache_evictions",
        "Blocks evicted from the prefix cache since the engine's last start.",
        lambda one: {(): one.kv.cache_evictions},
        kind=CounterMetricFamily,
    ),
    _node_gauge(
        "ocs_node_ready",
        "1: the NUMA node's engine can compute now.",
        lambda node: node.state is EngineState.READY,
    ),
    _node_gauge(
        "ocs_node_requests_running",
        "Sequences in the slots of the NUMA node's engine.",
        lambda node: sum(node.running.values()),
    ),
    _node_gauge(
        "ocs_node_requests_waiting",
        "Sequences that wait for a slot of the NUMA node's engine.",
        lambda node: sum(node.waiting.values()),
    ),
    _node_gauge(
        "ocs_node_resident_bytes",
        "Resident memory of the NUMA node's engine process, including its weights.",
        lambda node: node.engine_rss_bytes,
    ),
    _node_gauge(
        "ocs_node_threads_computing",
        "Threads that computed the last step of the NUMA node's engine.",
        lambda node: node.threads_computing,
    ),
    _device_gauge(
        "ocs_device_layers",
        "Layers of the model on a device beside the CPU, including the output; 0: all stayed on the "
        "CPU although a device was requested.",
        lambda placed: placed.layers,
    ),
    _device_gauge(
        "ocs_device_cpu_expert_layers",
        "Layers on the device whose experts are on the CPU.",
        lambda placed: placed.cpu_expert_layers,
    ),
    _device_gauge(
        "ocs_device_free_bytes",
        "The device's free memory before the model was loaded, as its driver reported it.",
        lambda placed: 0 if placed.device is None else placed.device.free_bytes,
    ),
    _Gauge(
        "ocs_device_bytes",
        "Memory of the device that the model takes.",
        lambda one: {
            (*labels, part): num_bytes
            for labels, placed in one.placements.items()
            for part, num_bytes in (
                ("weights", placed.weights_bytes),
                ("cells", placed.cells_bytes),
                ("compute", placed.compute_bytes),
            )
        },
        ("role", "device", "part"),
    ),
)


class EngineGauges(Collector):
    def __init__(self, engines: Callable[[], Iterable[tuple[str, Engine]]]) -> None:
        """`engines`: current engines with their models' names."""
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        readings = [
            GaugeReading(model, engine.status(), engine.kv_stats() or _NO_KV)
            for model, engine in self._engines()
        ]
        first = readings[0].status  # the API process counts once, with whichever engine comes first
        yield GaugeMetricFamily(
            "ocs_memory_resident_bytes",
            "Resident memory of this process and the engines, including models.",
            first.rss_bytes - first.engine_rss_bytes + sum(one.status.engine_rss_bytes for one in readings),
        )
        yield from (gauge.family(readings) for gauge in _OF_ENGINES)
        machine = Machine()  # Linux counts for the control group of this process and the engines
        yield CounterMetricFamily(
            "ocs_cpu_throttled_seconds_total",
            "CPU seconds that the control group's quota took away.",
            machine.throttled_s(),
        )
        yield CounterMetricFamily(
            "ocs_cpu_pressure_seconds_total",
            "Seconds in which a thread of the control group was ready and had no core, if Linux reports it.",
            machine.cpu_pressure_s() or 0.0,
        )
        yield from (gauge.family(readings) for gauge in _OF_WORK)


_ENGINE = "0"
"""vLLM's engine number, one for this server."""
_AWAY = (EngineState.ASLEEP, EngineState.FAILED, EngineState.STOPPED)
"""States without a KV pool."""


class GatewayGauges(Collector):
    def __init__(
        self, engines: Callable[[], Iterable[tuple[str, Engine]]], *, clock: Callable[[], float] = time.time
    ) -> None:
        """`engines`: the default model first. `clock`: Unix time."""
        self._engines = engines
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        engines = list(self._engines())
        name = engines[0][0]
        statuses = [engine.status() for _, engine in engines]
        loaded = [engine for _, engine in engines if engine.state not in _AWAY]
        pools = [
            (engine.info, engine.kv_stats() or _NO_KV)
            for engine in loaded or [engines[0][1]]  # or the planned pool of the default model
            if engine.info is not None and engine.info.kv_tokens
        ]
        total = sum(info.kv_tokens // POOL_BLOCK_TOKENS for info, _ in pools)
        used = sum(kv.pool_blocks_used for _, kv in pools)
        yield _gateway_gauge(
            "vllm:num_requests_running",
            "Sequences in the slots of all models, including batch work.",
            name,
            sum(sum(status.running.values()) for status in statuses),
        )
        yield _gateway_gauge(
            "vllm:num_requests_waiting",
            "Interactive sequences that wait for a slot; batch work is not counted, because another "
            "machine would not help it.",
            name,
            sum(status.waiting[Priority.INTERACTIVE.label] for status in statuses),
        )
        yield _gateway_gauge(
            "vllm:kv_cache_usage_perc",
            "Share of the KV pools' blocks that sequences hold, 0 to 1.",
            name,
            used / total if total else 0.0,
        )
        facts = {
            "block_size": str(POOL_BLOCK_TOKENS),
            "cache_dtype": pools[0][0].kv_type if pools else "",
            "engine": _ENGINE,
            "kv_cache_size_tokens": str(total * POOL_BLOCK_TOKENS),
            "num_gpu_blocks": str(total),
        }
        config = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Always 1; the labels have the size of the KV pools of all loaded models.",
            labels=tuple(facts),
        )
        config.add_metric(list(facts.values()), 1)
        yield config
        yield from self._adapters(engines)

    def _adapters(self, engines: list[tuple[str, Engine]]) -> Iterator[Metric]:
        """Yield nothing without adapters, as vLLM does."""
        adapted = [(name, engine) for name, engine in engines if engine.adapters()]
        if not adapted:
            return
        family = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "Unix time; the labels list the adapters with running and waiting requests, and how many "
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


def _named(requests: list[tuple[str, LiveRequest]], state: RequestState) -> str:
    """Return adapters as `MODEL:NAME,MODEL:NAME`. Batch work counts only while it runs."""
    found = {
        f"{model}:{one.adapter}"
        for model, one in requests
        if one.adapter is not None
        and one.state is state
        and (one.state is RequestState.RUNNING or one.priority is Priority.INTERACTIVE)
    }
    return ",".join(sorted(found))
