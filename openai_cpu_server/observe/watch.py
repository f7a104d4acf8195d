"""The one observer that is told of everything. It tells the others."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from openai_cpu_server.contract.messages import StepFigures
from openai_cpu_server.observe.ended import Ended
from openai_cpu_server.observe.metrics import Metrics
from openai_cpu_server.observe.recent import Recent
from openai_cpu_server.observe.tracing import Tracing


class Watch:
    """It is an `EngineObserver` too. All methods belong to one event loop's thread."""

    def __init__(self, metrics: Metrics, recent: Recent, tracing: Tracing | None = None) -> None:
        self.metrics = metrics
        self.recent = recent
        self._tracing = tracing

    @classmethod
    def new(cls, *, model: str, tracing: Tracing | None = None) -> Watch:
        """An observer with all counts at zero, in a registry of its own."""
        return cls(Metrics(CollectorRegistry(), model=model), Recent(), tracing)

    def ended(self, request: Ended) -> None:
        """Call this once for every request, however it ended."""
        self.metrics.ended(request)
        self.recent.ended(request)
        if self._tracing is not None:
            self._tracing.ended(request)

    def close(self) -> None:
        """Close the observers. Nothing may be told after this."""
        if self._tracing is not None:
            self._tracing.close()

    def step_done(self, figures: StepFigures) -> None:
        self.metrics.step_done(figures)
        self.recent.step_done(figures)

    def answer_kept(self) -> None:
        self.metrics.answer_kept()

    def answers_held(self, entries: int, num_bytes: int) -> None:
        self.metrics.answers_held(entries, num_bytes)

    def engine_died(self, cause: str) -> None:
        self.metrics.engine_died(cause)

    def model_loaded(self, model: str, seconds: float) -> None:
        self.metrics.model_loaded(model, seconds)

    def model_not_loaded(self, model: str) -> None:
        self.metrics.model_not_loaded(model)

    def model_unloaded(self, model: str, why: str) -> None:
        self.metrics.model_unloaded(model, why)
