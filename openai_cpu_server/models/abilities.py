"""What a served model can be asked for, and which one a request means that needs a certain ability."""

from __future__ import annotations

import enum
from collections.abc import Collection

from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.errors import WrongModelKind
from openai_cpu_server.models.registry import Chosen, ModelRegistry
from openai_cpu_server.models.served import ServedModel


class Ability(enum.Enum):
    """The value is a verb for people."""

    GENERATE = "generate text"
    EMBED = "embed"
    RERANK = "rerank"


def is_able(model: ServedModel, ability: Ability) -> bool:
    """A model that generates can rerank if its template asks for yes or no; one that embeds, by cosine."""
    if ability is Ability.GENERATE:
        return model.kind is ModelKind.GENERATES
    if ability is Ability.EMBED:
        return model.kind is ModelKind.EMBEDS
    return model.kind is not ModelKind.GENERATES or model.rerank is not None


def choose_able(
    models: ModelRegistry,
    name: str | None,
    allowed: Collection[str] | None,
    ability: Ability,
    *,
    adapter: str | None = None,
) -> Chosen:
    """The model of this name; without a name, the first that is allowed and able.

    `adapter`: where a request names it beside its model.

    Raises ModelNotFound, AdapterNotFound, and WrongModelKind for a model that is there but not able.
    """
    if name is None:
        name = next(iter(_able_names(models, allowed, ability)), None)
    chosen = models.choose(name, allowed, adapter=adapter)
    if not is_able(chosen.model, ability):
        able = _able_names(models, allowed, ability)
        raise WrongModelKind(chosen.name, ability.value, able=able)
    return chosen


def _able_names(models: ModelRegistry, allowed: Collection[str] | None, ability: Ability) -> tuple[str, ...]:
    names = models.names(allowed)
    return tuple(name for name in names if is_able(models.choose(name, allowed).model, ability))
