"""`GET /metrics`, in Prometheus' text format, and `GET /metrics/gateway`: the few that gateways choose by."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.access.access import GATEWAY_METRICS
from openai_cpu_server.api.access.keys import Scope
from openai_cpu_server.api.parts import Parts
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.routes import RouteRoom, RouteRow
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.observe.engine_gauges import EngineGauges
from openai_cpu_server.observe.gateway_gauges import GatewayGauges
from openai_cpu_server.observe.metrics import CONTENT_TYPE, Metrics, text_of

GATEWAY_METRICS_PATH = "/metrics/gateway"


class MetricsRoutes:
    def __init__(self, models: ModelRegistry, metrics: Metrics) -> None:
        self._for_gateways = GatewayGauges(lambda: [(model.name, model.engine) for model in models])
        metrics.add(EngineGauges(lambda: [(model.name, model.engine) for model in models.current]))
        metrics.add(self._for_gateways)
        self._metrics = metrics

    async def page(self, request: Request) -> Response:
        """All metrics; whoever came in as a stranger gets those for gateways alone."""
        if not context_of(request.scope).identity.may(Scope.METRICS):
            return await self.for_gateways(request)
        return _response(self._metrics.page())

    async def for_gateways(self, request: Request) -> Response:
        """Gateways may ask twenty times a second, and the whole page takes milliseconds."""
        return _response(text_of(self._for_gateways))


def _response(text: bytes) -> Response:
    return Response(text, headers={"content-type": CONTENT_TYPE})


ROOM = RouteRoom[Parts, MetricsRoutes](
    lambda parts: MetricsRoutes(parts.models, parts.watch.metrics),
    (
        RouteRow(
            "GET",
            "/metrics",
            lambda at: at.page,
            access=GATEWAY_METRICS,
            summary="For Prometheus",
            tag="Operation",
            media="text/plain",
        ),
        RouteRow(
            "GET",
            GATEWAY_METRICS_PATH,
            lambda at: at.for_gateways,
            access=GATEWAY_METRICS,
            summary="What gateways in front of several servers choose by",
            tag="Operation",
            media="text/plain",
        ),
    ),
)
