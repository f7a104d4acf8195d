"""Root observer, which passes everything to the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from openai_cpu_server.contract.figures import Amounts
from openai_cpu_server.contract.messages import StepFigures
from openai_cpu_server.observe.ended import EndedRequest, amounts_of
from openai_cpu_server.observe.metrics import Metrics
from openai_cpu_server.observe.recent import RecentActivity
from openai_cpu_server.observe.tracing import Tracing


@dataclass(eq=False)
class Telemetry:
    """Root observer. All methods belong to one event loop's thread."""

    metrics: Metrics
    recent: RecentActivity
    tracing: Tracing | None
    key_of: Callable[[str], str] = lambda client: ""
    """Returns the name of a client's key by its label, or ""."""
    book: Callable[[str, str, Amounts], None] | None = None
    """Records the usage of keys: name of the key, model, amounts."""

    @classmethod
    def new(cls, *, model: str, tracing: Tracing | None = None) -> Telemetry:
        """Return an observer with a registry of its own. `model`: name of the default model."""
        return cls(Metrics(CollectorRegistry(), model=model), RecentActivity(), tracing)

    def ended(self, request: EndedRequest) -> None:
        """Record a finished request. Call this once per request, however it ended."""
        self.metrics.ended(request)
        self.recent.ended(request)
        if self.tracing is not None:
            self.tracing.ended(request)
        if request.call is not None:
            self.used(request.key, request.call.model, amounts_of(request, request.call))

    def close(self) -> None:
        """Close the observers. Nothing may be recorded afterwards."""
        if self.tracing is not None:
            self.tracing.close()

    def used(self, key: str, model: str, amounts: Amounts) -> None:
        self.metrics.key_used(key, model, amounts)
        if self.book is not None:
            self.book(key, model, amounts)


@dataclass(frozen=True)
class ModelTelemetry:
    """`EngineObserver` of one model."""

    telemetry: Telemetry
    model: str

    def step_done(self, figures: StepFigures) -> None:
        self.telemetry.metrics.step_done(figures)
        self.telemetry.recent.step_done(figures)
        self.spent(figures.spent_ms)

    def spent(self, spent_ms: dict[str, float]) -> None:
        """Record CPU time by client label. Engines without reported steps call this themselves."""
        for client, cpu_ms in spent_ms.items():
            self.telemetry.used(self.telemetry.key_of(client), self.model, Amounts(cpu_ms=cpu_ms))

    def engine_died(self, cause: str) -> None:
        self.telemetry.metrics.count("engine_restarts", cause)
