"""`GET /metrics`, in Prometheus' text format."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.observe.engine_gauges import EngineGauges
from openai_cpu_server.observe.metrics import CONTENT_TYPE, Metrics


class MetricsRoutes:
    def __init__(self, models: ModelRegistry, metrics: Metrics) -> None:
        metrics.add(EngineGauges(lambda: [(model.name, model.engine) for model in models.current]))
        self._metrics = metrics

    async def page(self, request: Request) -> Response:
        return Response(self._metrics.page(), headers={"content-type": CONTENT_TYPE})
