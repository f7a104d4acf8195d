from __future__ import annotations

from functools import partial
from typing import Union

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server import __version__
from openai_cpu_server.api.state import AppState, response_of
from openai_cpu_server.contract.engine import EngineState, EngineStatus, unavailable
from openai_cpu_server.contract.offload import DevicePlacement
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import ErrorBody, error_object, json_response
from openai_cpu_server.http.keys import GATEWAY_METRICS, GATEWAYS, PROBES, Identity, Scope
from openai_cpu_server.http.routes import ApiRoute, ApiRouter
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.gauges import EngineGauges, GatewayGauges
from openai_cpu_server.observe.metrics import CONTENT_TYPE, metrics_text

GATEWAY_METRICS_PATH = "/metrics/gateway"


class QueueSizes(msgspec.Struct, frozen=True):
    running: int
    waiting: int


class Memory(msgspec.Struct, frozen=True):
    rss_bytes: int
    kv_tokens: int
    kv_tokens_used: int


class LastRestart(msgspec.Struct, frozen=True):
    cause: str
    reason: str
    age_s: float


class NodeHealth(msgspec.Struct, frozen=True):
    state: str
    reason: str | None
    queue: dict[str, QueueSizes]
    rss_bytes: int
    restarts: int
    threads: int
    threads_computing: int


class ModelHealth(msgspec.Struct, frozen=True):
    state: str
    reason: str | None
    threads: int
    """Count without contention. 0 until the model is loaded."""
    threads_computing: int
    """Last step's, fewer if others use the cores."""
    nodes: dict[str, NodeHealth]
    """One per NUMA node, with `--numa`."""
    placement: DevicePlacement | None
    """Null without a device beside the CPU."""
    draft_placement: DevicePlacement | None


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    """`loading`, `ready`, `asleep` (loaded by a request), `degraded` (ready, but another model or a replica
    has failed), `restarting`, `draining`, `failed` or `stopped`."""
    reason: str | None
    """Null if the key may not use all models, because a reason names some."""
    model: str | None
    """This key's default. Null without a key on a server with keys."""
    models: dict[str, ModelHealth]
    loaded: float
    queue: dict[str, QueueSizes]
    memory: Memory
    kernels: dict[str, str]
    """Instruction set of each of our kernels, or why it is off, and the layout of `weights`. Empty until
    loaded."""
    restarts: int
    last_restart: LastRestart | None
    error: Union[ErrorBody, UnsetType] = UNSET


class Version(msgspec.Struct, frozen=True):
    """vLLM's format, by which gateways expect vLLM's metrics."""

    version: str


_route = partial(ApiRoute, "GET", access=PROBES, tag="Operation")


class HealthRoutes:
    def __init__(self, state: AppState) -> None:
        self._models = models = state.models
        self._metrics = state.telemetry.metrics
        self._for_gateways = GatewayGauges(lambda: [(model.name, model.engine) for model in models])
        self._metrics.add(EngineGauges(lambda: [(model.name, model.engine) for model in models.current]))
        self._metrics.add(self._for_gateways)

    @_route("/health", answer=HealthReport)
    async def health(self, request: Request) -> Response:
        """Report the state of the server, with status 200 while its process runs."""
        return json_response(self._report(self._models.status(), context_of(request.scope).identity))

    @_route("/ready", answer=HealthReport, errors=(503,))
    async def ready(self, request: Request) -> Response:
        """Report the state of the server, with status 503 until it can generate."""
        status, identity = self._models.status(), context_of(request.scope).identity
        report = self._report(status, identity)
        if status.state in (EngineState.READY, EngineState.ASLEEP):
            return json_response(report)
        if status.reason and report.reason is None:
            status = msgspec.structs.replace(status, reason="the server's log has the reason")
        why = unavailable(status)
        error = error_object(why, request_id=context_of(request.scope).request_log.id).error
        report = msgspec.structs.replace(report, error=error)
        return json_response(report, 503, {"retry-after": str(why.retry_after_s)})

    @_route("/version", access=GATEWAYS, answer=Version)
    async def version(self, request: Request) -> Response:
        """Return the version of this server."""
        return json_response(Version(__version__))

    @_route("/metrics", access=GATEWAY_METRICS, media="text/plain")
    async def metrics(self, request: Request) -> Response:
        """Return all metrics for Prometheus, or without a key only those for gateways."""
        if not context_of(request.scope).identity.may(Scope.METRICS):
            return await self.gateway_metrics(request)
        return Response(self._metrics.page(), headers={"content-type": CONTENT_TYPE})

    @_route(GATEWAY_METRICS_PATH, access=GATEWAY_METRICS, media="text/plain")
    async def gateway_metrics(self, request: Request) -> Response:
        """Return the metrics by which gateways choose a server.

        Gateways may fetch them 20 times per second, and the whole page takes milliseconds.
        """
        return Response(metrics_text(self._for_gateways), headers={"content-type": CONTENT_TYPE})

    def _report(self, status: EngineStatus, identity: Identity) -> HealthReport:
        degraded = self._models.degraded if status.state is EngineState.READY else None
        last, names = status.last_death, self._names(identity)
        return response_of(
            HealthReport,
            status,
            status="degraded" if degraded else status.state.value,
            reason=(degraded or status.reason) if len(names) == len(self._models.current) else None,
            model=next(iter(names), None),
            models={name: _health(model) for name, model in names.items()},
            queue=queue_sizes(status),
            memory=response_of(Memory, status),
            last_restart=LastRestart(last.cause, last.message, round(last.age_s, 1)) if last else None,
        )

    def _names(self, identity: Identity) -> dict[str, ServedModel]:
        if identity.is_stranger:
            return {}
        allowed, names = identity.allowed_models, dict[str, ServedModel]()
        for model in self._models.current:
            usable = [name for name in model.names if allowed is None or name in allowed]
            names |= dict.fromkeys(usable[:1], model)
        return names


def _health(model: ServedModel) -> ModelHealth:
    status = model.engine.status()
    nodes = {
        name: response_of(NodeHealth, node, queue=queue_sizes(node), rss_bytes=node.engine_rss_bytes)
        for name, node in status.nodes.items()
    }
    return response_of(ModelHealth, status, nodes=nodes)


def queue_sizes(status: EngineStatus) -> dict[str, QueueSizes]:
    return {p.label: QueueSizes(status.running[p.label], status.waiting[p.label]) for p in Priority}


ROUTER = ApiRouter[AppState](HealthRoutes)
