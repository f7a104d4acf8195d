"""All served models, which one a name means, and what each can be asked for."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

from openai_cpu_server.contract.engine import EngineState, EngineStatus
from openai_cpu_server.contract.model_info import AdapterState, ModelKind
from openai_cpu_server.errors import (
    AdapterNotFound,
    EngineUnavailable,
    InvalidRequest,
    ModelNotFound,
    RouterNotModel,
    WrongModelKind,
)
from openai_cpu_server.models.presets import Preset
from openai_cpu_server.models.routing.router import ModelRouter
from openai_cpu_server.models.served import ServedModel

LATEST = "latest"
_WORST_FIRST = (
    EngineState.FAILED,
    EngineState.STOPPED,
    EngineState.DRAINING,
    EngineState.LOADING,
    EngineState.RESTARTING,
    EngineState.ASLEEP,
    EngineState.READY,
)


class ChosenModel(NamedTuple):
    """A model, and the name that it was asked for by."""

    name: str
    model: ServedModel
    adapter: str | None = None
    """The name of an adapter of the model."""
    preset: Preset | None = None
    """What is said beforehand where it was asked for by this name."""

    @property
    def adapter_key(self) -> str | None:
        """What tells the adapter's present version from all others."""
        status = next((one for one in self.model.engine.adapters() if one.adapter.name == self.adapter), None)
        return status.adapter.key if status is not None else None


class ShelvedModel(NamedTuple):
    """A model that can be had, and that nobody has asked for yet. Little is known of it."""

    name: str
    num_bytes: int
    changed_s: int
    why_not: str | None
    """Its file is damaged. None: it can be served."""
    kind: ModelKind | None
    architecture: str
    quantisation: str | None


class ModelShelf(Protocol):
    """Where models lie that are served when they are asked for."""

    @property
    def known(self) -> Sequence[ShelvedModel]:
        """What was there at the last look, and is not served yet."""
        ...

    async def look(self) -> None:
        """See what has come and gone. What has gone is served no more."""
        ...

    async def bring(self, name: str) -> None:
        """It is served from now on. Raises ModelNotLoaded."""
        ...


class ModelRegistry:
    """`allowed`: the names that a caller may use; None: all. Others do not exist for them.

    An adapter of a model is called `MODEL:ADAPTER`. Where a model has that very name, that is meant.
    `MODEL:latest`, which Ollama's clients make of a name without a tag, is the model, if nothing else is.
    `llama3.2:3b`, where there is no `llama3.2`, is `llama-3.2-3b`: Ollama puts a size behind a colon.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        routers: Sequence[ModelRouter] = (),
        *,
        takes_any_name: bool = False,
    ) -> None:
        """At least one model; the first is meant where no name is given, and with `takes_any_name` where it
        is none of theirs."""
        assert models, "there is nothing to serve"
        self._takes_any_name = takes_any_name
        self._models = list(models)
        self._replaced: list[ServedModel] = []
        """Others have taken their places; they end what they have."""
        self._by_name = {name: model for model in models for name in model.names}
        self._routers = {name: router for router in routers for name in router.names}
        self._presets: dict[str, Preset] = {}
        self.shelf: ModelShelf | None = None
        """Where further ones lie; None: nowhere."""

    def __iter__(self) -> Iterator[ServedModel]:
        """All that have requests, also those that have been replaced."""
        return iter([*self._models, *self._replaced])

    @property
    def current(self) -> Sequence[ServedModel]:
        """One for each name."""
        return tuple(self._models)

    @property
    def default(self) -> ServedModel:
        return self._models[0]

    def names(self, allowed: Collection[str] | None) -> tuple[str, ...]:
        """All models, then what was made of them, then their adapters that can be had."""
        names = [
            *self._by_name,
            *(name for name in self._presets if self._derived(name) is not None),
            *(name for model in self._models for name in _adapted_names(model)),
        ]
        return tuple(name for name in dict.fromkeys(names) if allowed is None or name in allowed)

    def choose(
        self, name: str | None, allowed: Collection[str] | None, *, adapter: str | None = None
    ) -> ChosenModel:
        """The model of this name; without a name, of the first that is allowed.

        `adapter`: where a request names it beside its model. Raises ModelNotFound, RouterNotModel,
        AdapterNotFound, InvalidRequest for two adapters.
        """
        name = self.meant(name)
        if name is None:
            name = self._first(allowed)
        if (router := self.router(name, allowed)) is not None:
            raise RouterNotModel(router.name, tuple(router.options.routes.values()))
        chosen = None
        if name is not None:
            chosen = self._named(name) if adapter is None else self._adapted(name, adapter)
        if chosen is None or (allowed is not None and chosen.name not in allowed):
            shelved = [one.name for one in _on_shelf(self, allowed)]
            there_is = (*self.names(allowed), *self.router_names(allowed), *shelved)
            raise ModelNotFound(name, there_is)  # only a name that the client has sent
        if chosen.adapter is not None:
            _check_there(chosen, param=None if adapter is None else "lora")
        return chosen

    def meant(self, name: str | None) -> str | None:
        """The name, or None where it stands for none."""
        is_known = name is None or self.has(name)
        return name if is_known or not self._takes_any_name else None

    def has(self, name: str) -> bool:
        """Also where any name may be asked for."""
        return name in self._routers or self._named(name) is not None

    def _first(self, allowed: Collection[str] | None) -> str | None:
        """None: there is no model that may be used."""
        return self.default.name if allowed is None else next(iter(self.names(allowed)), None)

    def _named(self, name: str) -> ChosenModel | None:
        if name in self._by_name:
            return ChosenModel(name, self._by_name[name])
        if name.removesuffix(f":{LATEST}") in self._presets:
            return self._derived(name.removesuffix(f":{LATEST}"))
        base, colon, adapter = name.rpartition(":")
        if not colon:
            return None
        if base not in self._by_name:
            return self._tagged(name)
        model = self._by_name[base]
        if adapter == LATEST and name not in _adapted_names(model):
            return ChosenModel(base, model)
        return ChosenModel(name, model, adapter)

    def _derived(self, name: str) -> ChosenModel | None:
        """None: the model that it was made of has gone."""
        preset = self._presets[name]
        chosen = self._named(preset.base)
        return None if chosen is None else chosen._replace(name=name, preset=preset)

    def _tagged(self, name: str) -> ChosenModel | None:
        """The model whose name has the same letters; None where several have."""
        alike = [known for known in self._by_name if _letters(known) == _letters(name)]
        models = {id(self._by_name[known]) for known in alike}
        return ChosenModel(alike[0], self._by_name[alike[0]]) if len(models) == 1 else None

    def _adapted(self, name: str, adapter: str) -> ChosenModel | None:
        """The model of this name with the adapter that a field of its own names."""
        chosen = self._named(name)
        if chosen is None:
            return None
        if chosen.adapter is None:
            return chosen._replace(name=f"{name}:{adapter}", adapter=adapter)
        if chosen.adapter != adapter:
            message = f"'model' names the adapter '{chosen.adapter}', and 'lora' another one."
            raise InvalidRequest(message, param="lora", code="invalid_value")
        return chosen

    def router(self, name: str | None, allowed: Collection[str] | None) -> ModelRouter | None:
        """The router of this name; None: it is the name of a model, or of nothing."""
        if name is None or (allowed is not None and name not in allowed):
            return None
        return self._routers.get(name)

    def router_names(self, allowed: Collection[str] | None) -> tuple[str, ...]:
        return tuple(name for name in self._routers if allowed is None or name in allowed)

    def add(self, model: ServedModel) -> None:
        """It has names that nobody else has."""
        self._models.append(model)
        self._by_name.update(dict.fromkeys(model.names, model))

    def remove(self, model: ServedModel) -> None:
        """Nobody can ask for it any more; it is known until `forget`."""
        self._models.remove(model)
        self._replaced.append(model)
        for name in model.names:
            del self._by_name[name]

    def derive(self, name: str, preset: Preset) -> None:
        """From now on the name means this. Raises InvalidRequest for one that a model or a router has."""
        if name in self._by_name or name in self._routers:
            raise InvalidRequest(f"'{name}' is a model's own name.", param="model", code="invalid_value")
        self._presets[name] = preset

    def forget_preset(self, name: str) -> None:
        self._presets.pop(name, None)

    def is_current(self, model: ServedModel) -> bool:
        """False: another has taken its place since it was chosen."""
        return model in self._models

    def replace(self, old: ServedModel, new: ServedModel) -> None:
        """From now on the names mean the new one; the old one is known until `forget`."""
        assert old.names == new.names, "it has other names"
        self._models[self._models.index(old)] = new
        self._replaced.append(old)
        self._by_name.update(dict.fromkeys(new.names, new))

    def forget(self, old: ServedModel) -> None:
        """It has ended what it had."""
        self._replaced.remove(old)

    def check_not_ending(self) -> None:
        """Raises EngineUnavailable while the server drains. For new work that needs no engine at once."""
        if any(model.engine.is_ending for model in self._models):
            again_s = EngineState.DRAINING.retry_after_s
            raise EngineUnavailable("The server is about to end and takes no new work.", again_s)

    @property
    def degraded(self) -> str | None:
        """Which models have failed beside a default that has not, and what is wrong with a part of the
        default that others make up for; None: nothing."""
        states = [(model.name, model.engine.status()) for model in self._models[1:]]
        failed = [f"{name}: {status.reason}" for name, status in states if status.state is EngineState.FAILED]
        default = self.default.engine.status()
        lame = [default.reason] if default.state is EngineState.READY and default.reason else []
        return "; ".join([*lame, *failed]) or None

    def status(self) -> EngineStatus:
        """All engines as one, with the sums of what they hold.

        It is in the state of the worst, but others than the default may load or have failed: it is as ready
        as without them. A model that sleeps is as good as a ready one.
        """
        default, *others = [model.engine.status() for model in self]
        counted = [default, *(one for one in others if one.state not in _NO_HARM)]
        worst = min(counted, key=lambda status: _WORST_FIRST.index(status.state))
        all_of_them = [default, *others]
        deaths = [status.last_death for status in all_of_them if status.last_death is not None]
        if not others:
            return default
        return EngineStatus(
            state=EngineState.READY if worst.state is EngineState.ASLEEP else worst.state,
            reason=worst.reason,
            loaded=min((one.loaded for one in counted if one.state is not EngineState.ASLEEP), default=1.0),
            timed=worst.timed,
            running=_sums([status.running for status in all_of_them]),
            waiting=_sums([status.waiting for status in all_of_them]),
            kv_tokens=sum(status.kv_tokens for status in all_of_them),
            kv_tokens_used=sum(status.kv_tokens_used for status in all_of_them),
            restarts=sum(status.restarts for status in all_of_them),
            last_death=min(deaths, key=lambda death: death.age_s, default=None),
            rss_bytes=default.rss_bytes + sum(status.engine_rss_bytes for status in others),
            engine_rss_bytes=sum(status.engine_rss_bytes for status in all_of_them),
            kernels=next((one.kernels for one in all_of_them if one.kernels), {}),
        )


_NO_HARM = (EngineState.LOADING, EngineState.FAILED, EngineState.ASLEEP)


async def shelved(models: ModelRegistry, allowed: Collection[str] | None) -> Sequence[ShelvedModel]:
    """What lies on the shelf now, and is not served yet."""
    if models.shelf is None:
        return ()
    await models.shelf.look()
    return _on_shelf(models, allowed)


async def fetch(models: ModelRegistry, name: str | None, allowed: Collection[str] | None) -> None:
    """Where the name means a model on the shelf, that is served from now on. Whoever is about to `choose` one
    calls it first. Raises ModelNotLoaded."""
    shelf = models.shelf
    if shelf is None or (name is not None and models.has(name)):
        return
    if name is not None:
        meant = _meant(name, [one.name for one in await shelved(models, allowed)])
        if meant is not None:
            await shelf.bring(meant)
    elif allowed is not None and not models.names(allowed) and (there := await shelved(models, allowed)):
        await shelf.bring(there[0].name)


def _on_shelf(models: ModelRegistry, allowed: Collection[str] | None) -> Sequence[ShelvedModel]:
    there = () if models.shelf is None else models.shelf.known
    return [one for one in there if allowed is None or one.name in allowed]


def _meant(name: str, there: Sequence[str]) -> str | None:
    """Which of these models is meant, by the rules of `ModelRegistry`; None: none."""
    base = name.rpartition(":")[0]
    exact = [one for one in (name, base) if one in there]
    alike = [one for one in there if _letters(one) == _letters(name)] if base else []
    return exact[0] if exact else alike[0] if len(alike) == 1 else None


def _letters(name: str) -> str:
    return name.lower().replace("-", "").replace(":", "")


def _adapted_names(model: ServedModel) -> Iterator[str]:
    for status in model.engine.adapters():
        if status.state is not AdapterState.FAILED:
            yield f"{model.name}:{status.adapter.name}"


def _check_there(chosen: ChosenModel, *, param: str | None) -> None:
    """Raises AdapterNotFound."""
    statuses = {status.adapter.name: status for status in chosen.model.engine.adapters()}
    status = statuses.get(chosen.adapter or "")
    if status is None or status.state is AdapterState.FAILED:
        known = [name for name, one in statuses.items() if one.state is not AdapterState.FAILED]
        reason = None if status is None else status.reason
        raise AdapterNotFound(chosen.adapter or "", known, reason=reason, param=param)


def _sums(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    return {label: sum(count[label] for count in counts) for label in counts[0]}


class Ability(enum.Enum):
    """The value is a verb for people."""

    GENERATE = "generate text"
    HEAR = "hear"
    """And generate."""
    EMBED = "embed"
    RERANK = "rerank"
    CLASSIFY = "tell classes apart"


def is_able(model: ServedModel, ability: Ability) -> bool:
    """A model that generates can rerank if its template asks for yes or no; one that embeds, by cosine. What
    nothing is known of yet may hear."""
    if ability is Ability.GENERATE:
        return model.kind is ModelKind.GENERATES
    if ability is Ability.HEAR:
        info = model.engine.info
        return model.kind is ModelKind.GENERATES and (info is None or info.hears)
    if ability is Ability.EMBED:
        return model.kind is ModelKind.EMBEDS
    if ability is Ability.CLASSIFY:
        return model.kind is ModelKind.RERANKS
    return model.kind is not ModelKind.GENERATES or model.rerank is not None


def choose_able(
    models: ModelRegistry,
    name: str | None,
    allowed: Collection[str] | None,
    ability: Ability,
    *,
    adapter: str | None = None,
) -> ChosenModel:
    """The model of this name; without a name, the first that is allowed and able.

    `adapter`: where a request names it beside its model.

    Raises ModelNotFound, AdapterNotFound, and WrongModelKind for a model that is there but not able.
    """
    if (name := models.meant(name)) is None:
        name = next(iter(_able_names(models, allowed, ability)), None)
    chosen = models.choose(name, allowed, adapter=adapter)
    if not is_able(chosen.model, ability):
        able = _able_names(models, allowed, ability)
        raise WrongModelKind(chosen.name, ability.value, able=able)
    return chosen


def _able_names(models: ModelRegistry, allowed: Collection[str] | None, ability: Ability) -> tuple[str, ...]:
    names = models.names(allowed)
    return tuple(name for name in names if is_able(models.choose(name, allowed).model, ability))
