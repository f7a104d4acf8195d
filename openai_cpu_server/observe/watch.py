"""The one observer that is told of everything. It tells the others."""

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
"""Takes down what the key of this name has used of this model."""


class Watch:
    """All methods belong to one event loop's thread."""

    def __init__(self, metrics: Metrics, recent: RecentActivity, tracing: Tracing | None) -> None:
        self.metrics = metrics
        self.recent = recent
        self._tracing = tracing
        self._key_of: Callable[[str], str] = lambda client: ""
        self._book: Book | None = None

    @classmethod
    def new(cls, *, model: str, tracing: Tracing | None = None) -> Watch:
        """An observer with all counts at zero, in a registry of its own. `model`: the default's name."""
        return cls(Metrics(CollectorRegistry(), model=model), RecentActivity(), tracing)

    def know_keys(self, key_of: Callable[[str], str], book: Book | None) -> None:
        """`key_of`: the name of a client's key, by the label that requests carry; "" for one that has none.
        `book`: who keeps account of what keys use; None: nobody."""
        self._key_of = key_of
        self._book = book

    def ended(self, request: EndedRequest) -> None:
        """Call this once for every request, however it ended."""
        self.metrics.ended(request)
        self.recent.ended(request)
        if self._tracing is not None:
            self._tracing.ended(request)
        if request.call is not None:
            self._used(request.key, request.call.model, amounts_of(request, request.call))

    def close(self) -> None:
        """Close the observers. Nothing may be told after this."""
        if self._tracing is not None:
            self._tracing.close()

    def of_model(self, model: str) -> ModelWatch:
        """The observer of this model's engine."""
        return ModelWatch(self, model)

    def model_step(self, model: str, figures: StepFigures) -> None:
        self.metrics.steps.step_done(figures)
        self.recent.step_done(figures)
        self.model_spent(model, figures.spent_ms)

    def model_spent(self, model: str, spent_ms: dict[str, float]) -> None:
        """CPU time of the model's engine, by the label of the client."""
        for client, cpu_ms in spent_ms.items():
            self._used(self._key_of(client), model, Amounts(cpu_ms=cpu_ms))

    def _used(self, key: str, model: str, amounts: Amounts) -> None:
        self.metrics.keys.used(key, model, amounts)
        if self._book is not None:
            self._book(key, model, amounts)


class ModelWatch:
    """An `EngineObserver` that knows whose engine it is told of."""

    def __init__(self, watch: Watch, model: str) -> None:
        self._watch = watch
        self._model = model

    def step_done(self, figures: StepFigures) -> None:
        self._watch.model_step(self._model, figures)

    def spent(self, spent_ms: dict[str, float]) -> None:
        """An engine elsewhere, whose steps are not told, has spent this."""
        self._watch.model_spent(self._model, spent_ms)

    def engine_died(self, cause: str) -> None:
        self._watch.metrics.engine_died(cause)
