"""A server with telemetry, and a reader of its `/metrics` as Prometheus reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.files.rows import RowRunner
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.observe.telemetry import ModelTelemetry, Telemetry
from openai_cpu_server.observe.tracing import Tracing
from tests.api.serving import OPTIONS, client, new_engine, running, served


@dataclass(frozen=True)
class ObservedServer:
    """Engine and application with metrics in one telemetry."""

    engine: EngineClient
    app: Starlette
    http: httpx.AsyncClient
    run_row: RowRunner


@asynccontextmanager
async def observed_server(
    *flags: str, tracing: Tracing | None = None, max_queue: int = 1000, max_seqs: int = 16
) -> AsyncIterator[ObservedServer]:
    telemetry = Telemetry.new(model="fake", tracing=tracing)
    async with running(
        new_engine(
            *flags,
            max_queue=max_queue,
            max_seqs=max_seqs,
            cache_bytes=4096,
            observer=ModelTelemetry(telemetry, "fake"),
        )
    ) as engine:
        api = create_api(served(engine), OPTIONS, telemetry=telemetry)
        async with client(api.app) as http:
            yield ObservedServer(engine, api.app, http, api.run_row)


class Page:
    """Samples of one response of `/metrics`."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in families for sample in family.samples]

    def sum(self, name: str, **labels: str) -> float:
        """Sum of all series that have these labels, or 0 if none has."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def series(self, name: str) -> list[dict[str, str]]:
        return [sample.labels for sample in self.samples if sample.name == name and sample.value]


async def page(http: httpx.AsyncClient) -> Page:
    response = await http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Page(response.text)
