"""The cache of answers that the settings ask for."""

from __future__ import annotations

from openai_cpu_server.answers.cache import AnswerCache, AnswerObserver, open_answers
from openai_cpu_server.answers.store import StoreBounds
from openai_cpu_server.api.asking.answer_lookup import AnswerLookup, SimilarAnswers
from openai_cpu_server.config.folders import user_data_dir
from openai_cpu_server.config.settings import Settings, revealed
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.errors import StartupError
from openai_cpu_server.models.registry import ModelRegistry

_MIB = 1024 * 1024


def check_recall(settings: Settings) -> None:
    """Raises StartupError where options contradict each other, whatever the models are."""
    if settings.semantic_cache is None and settings.semantic_cache_model is not None:
        raise StartupError("--semantic-cache-model needs --semantic-cache, such as 0.95")
    if revealed(settings.answer_cache) == "off" and settings.semantic_cache is not None:
        raise StartupError("--semantic-cache needs an --answer-cache")


def open_recall(settings: Settings, models: ModelRegistry, watcher: AnswerObserver) -> AnswerLookup | None:
    """None: every answer is computed. Raises StartupError with one line."""
    check_recall(settings)
    least, where = settings.semantic_cache, revealed(settings.answer_cache)
    if where == "off" or (where is None and least is None):
        return None
    similar = None
    if least is not None:
        similar = SimilarAnswers(embedding_model(models, settings.semantic_cache_model), least)
    bounds = StoreBounds(settings.answer_cache_ttl, settings.answer_cache_mb * _MIB)
    store = open_answers(where or "on", bounds, default=user_data_dir() / "answers.db")
    return AnswerLookup(AnswerCache(store, bounds, watcher), models, similar)


def embedding_model(models: ModelRegistry, named: str | None) -> str:
    """The model that embeds for the server itself. `named`: by an option; None: the only one.

    Raises StartupError.
    """
    can = [model.name for model in models.current if model.kind is ModelKind.EMBEDS]
    if named is None:
        if len(can) == 1:
            return can[0]
        found = f"{', '.join(can)} embed: name one" if can else "no model embeds: add --model minilm"
        raise StartupError(f"--semantic-cache needs --semantic-cache-model, for {found}")
    model = next((model for model in models.current if named in model.names), None)
    if model is None:
        raise StartupError(f"--semantic-cache-model: there is no model {named!r}")
    if model.kind is not ModelKind.EMBEDS:
        is_broken = model.engine.state is EngineState.FAILED
        why = "cannot be read" if is_broken else f"{model.kind.value}, it does not embed"
        raise StartupError(f"--semantic-cache-model: {named!r} {why}")
    return model.name
