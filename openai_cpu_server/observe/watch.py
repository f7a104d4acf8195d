"""Root observer, which passes everything to the others."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from openai_cpu_server.contract.figures import Amounts
from openai_cpu_server.contract.messages import StepFigures
from openai_cpu_server.observe.ended import EndedRequest, amounts_of
from openai_cpu_server.observe.metrics import Metrics
from openai_cpu_server.observe.recent import RecentActivity
from openai_cpu_server.observe.tracing import Tracing

Book = Callable[[str, str, Amounts], None]
"""Records usage: name of the key, model, amounts."""


class Watch:
    """Root observer. All methods belong to one event loop's thread."""

    def __init__(self, metrics: Metrics, recent: RecentActivity, tracing: Tracing | None) -> None:
        self.metrics = metrics
        self.recent = recent
        self._tracing = tracing
        self._key_of: Callable[[str], str] = lambda client: ""
        self._book: Book | None = None

    @classmethod
    def new(cls, *, model: str, tracing: Tracing | None = None) -> Watch:
        """Return an observer with a registry of its own. `model`: name of the default model."""
        return cls(Metrics(CollectorRegistry(), model=model), RecentActivity(), tracing)

    def know_keys(self, key_of: Callable[[str], str], book: Book | None) -> None:
        """`key_of`: name of a client's key by its label, or "". `book`: records the usage of keys, or
        None."""
        self._key_of = key_of
        self._book = book

    def ended(self, request: EndedRequest) -> None:
        """Record a finished request. Call this once per request, however it ended."""
        self.metrics.ended(request)
        self.recent.ended(request)
        if self._tracing is not None:
            self._tracing.ended(request)
        if request.call is not None:
            self._used(request.key, request.call.model, amounts_of(request, request.call))

    def close(self) -> None:
        """Close the observers. Nothing may be recorded afterwards."""
        if self._tracing is not None:
            self._tracing.close()

    def of_model(self, model: str) -> ModelWatch:
        return ModelWatch(self, model)

    def model_step(self, model: str, figures: StepFigures) -> None:
        self.metrics.steps.step_done(figures)
        self.recent.step_done(figures)
        self.model_spent(model, figures.spent_ms)

    def model_spent(self, model: str, spent_ms: dict[str, float]) -> None:
        """Record CPU time of the model's engine by client label."""
        for client, cpu_ms in spent_ms.items():
            self._used(self._key_of(client), model, Amounts(cpu_ms=cpu_ms))

    def _used(self, key: str, model: str, amounts: Amounts) -> None:
        self.metrics.keys.used(key, model, amounts)
        if self._book is not None:
            self._book(key, model, amounts)


class ModelWatch:
    """`EngineObserver` of one model."""

    def __init__(self, watch: Watch, model: str) -> None:
        self._watch = watch
        self._model = model

    def step_done(self, figures: StepFigures) -> None:
        self._watch.model_step(self._model, figures)

    def spent(self, spent_ms: dict[str, float]) -> None:
        """Record CPU time of a remote engine, whose steps are not reported."""
        self._watch.model_spent(self._model, spent_ms)

    def engine_died(self, cause: str) -> None:
        self._watch.metrics.engine_died(cause)
