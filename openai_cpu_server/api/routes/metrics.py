"""`GET /metrics`, in Prometheus' text format, and `GET /metrics/gateway`: the few that gateways choose by."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.access.keys import Scope
from openai_cpu_server.http.context import context_of
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
