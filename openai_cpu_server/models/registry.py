"""Names of served models, and each model's abilities."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from openai_cpu_server.contract.engine import EngineState, EngineStatus, unavailable
from openai_cpu_server.contract.model_info import AdapterState, ModelKind
from openai_cpu_server.errors import (
    AdapterNotFound,
    EngineUnavailable,
    InvalidRequest,
    ModelNotFound,
    RouterNotModel,
    WrongModelKind,
)
from openai_cpu_server.models.routing.router import ModelRouter
from openai_cpu_server.models.served import ServedModel

LATEST = "latest"
_SIZE_TAG = re.compile(r"(?i)(\d+(?:\.\d+)?)([mb])(?:-(?:instruct|chat|it|text))?(?:-([qifbm]\w+))?")
"""Ollama's size tag, such as `1.5b` or `135m-instruct-q4_K_M`."""
_SIZE_TOLERANCE = 1.4
"""`llama3.2:1b` has 1.24 billion parameters, `gemma2:2b` 2.6. Models of one family differ by 1.8 and more."""
_WORST_FIRST = (
    EngineState.FAILED,
    EngineState.STOPPED,
    EngineState.DRAINING,
    EngineState.LOADING,
    EngineState.RESTARTING,
    EngineState.ASLEEP,
    EngineState.READY,
)


class PresetMessage(msgspec.Struct, frozen=True):
    role: str
    content: str


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    base: str
    """Underlying model, never another derived name."""
    system: str = ""
    """Default of conversations without one."""
    template: str = ""
    """Ollama template, or "" for the model's own."""
    messages: tuple[PresetMessage, ...] = ()
    parameters: Mapping[str, int | float] = {}
    """Values by the contract's names."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    def over(self, below: Preset) -> Preset:
        """Merge presets, because a name derived from a derived one refers to its model."""
        return Preset(
            base=below.base,
            system=self.system or below.system,
            template=self.template or below.template,
            messages=self.messages or below.messages,
            parameters={**below.parameters, **self.parameters},
            max_tokens=below.max_tokens if self.max_tokens is None else self.max_tokens,
            stop=self.stop or below.stop,
        )


class ChosenModel(NamedTuple):
    name: str
    model: ServedModel
    adapter: str | None = None
    preset: Preset | None = None

    @property
    def adapter_key(self) -> str | None:
        status = next((one for one in self.model.engine.adapters() if one.adapter.name == self.adapter), None)
        return status.adapter.key if status is not None else None


class AvailableModel(NamedTuple):
    name: str
    num_bytes: int
    changed_s: int
    why_not: str | None
    kind: ModelKind | None
    architecture: str
    quantisation: str | None


class ModelCatalog(Protocol):
    @property
    def available(self) -> Sequence[AvailableModel]:
        """Models of the last scan, not served yet."""

    async def look(self) -> None:
        """Scan again, and drop models without files."""
        ...

    async def bring(self, name: str) -> None:
        """Serve the model. Raises ModelNotLoaded."""
        ...


class ModelRegistry:
    """Served models by name. `allowed`: names that exist for a caller, or None for all.

    An adapter is `MODEL:ADAPTER` unless a model has that name. Ollama's clients send `MODEL:latest` for
    `MODEL`, and `llama3.2:3b` for `llama3.2` of that size or `llama-3.2-3b`.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        routers: Sequence[ModelRouter] = (),
        *,
        takes_any_name: bool = False,
    ) -> None:
        """`models`: the first is the default, and serves unknown names with `takes_any_name`."""
        assert models, "no model to serve"
        self._takes_any_name = takes_any_name
        self._models = list(models)
        self._replaced: list[ServedModel] = []
        self._by_name = {name: model for model in models for name in model.names}
        self._routers = {name: router for router in routers for name in router.options.names}
        self._presets: dict[str, Preset] = {}
        self.catalog: ModelCatalog | None = None

    def __iter__(self) -> Iterator[ServedModel]:
        """Include replaced models."""
        return iter([*self._models, *self._replaced])

    @property
    def current(self) -> Sequence[ServedModel]:
        return tuple(self._models)

    @property
    def default(self) -> ServedModel:
        return self._models[0]

    def names(self, allowed: Collection[str] | None) -> tuple[str, ...]:
        """Order: models, derived names, available adapters."""
        names = [
            *self._by_name,
            *(name for name in self._presets if self._derived(name) is not None),
            *(name for model in self._models for name in _adapted_names(model)),
        ]
        return tuple(name for name in dict.fromkeys(names) if allowed is None or name in allowed)

    def choose(
        self, name: str | None, allowed: Collection[str] | None, *, adapter: str | None = None
    ) -> ChosenModel:
        """Resolve a name, or choose the first allowed model. Raises ModelNotFound, RouterNotModel,
        AdapterNotFound, and InvalidRequest for two adapters."""
        name = self.meant(name)
        if name is None:
            name = self.default.name if allowed is None else next(iter(self.names(allowed)), None)
        if (router := self.router(name, allowed)) is not None:
            targets = router.options.routes.values()
            raise RouterNotModel(router.name, [one for one in targets if allowed is None or one in allowed])
        chosen = None
        if name is not None:
            chosen = self._named(name) if adapter is None else self._adapted(name, adapter)
        if chosen is None or (allowed is not None and chosen.name not in allowed):
            available_models = [one.name for one in _available(self, allowed)]
            there_is = (*self.names(allowed), *self.router_names(allowed), *available_models)
            raise ModelNotFound(name, there_is)  # only a name that the client has sent
        if chosen.adapter is not None:
            _require_adapter(chosen, allowed, param=None if adapter is None else "lora")
        return chosen

    def meant(self, name: str | None) -> str | None:
        """Return None for a placeholder."""
        is_served = name is None or self.has(name)
        return name if is_served or not self._takes_any_name else None

    def has(self, name: str) -> bool:
        """Ignore `takes_any_name`."""
        return name in self._routers or self._named(name) is not None

    def _named(self, name: str) -> ChosenModel | None:
        if name in self._by_name:
            return ChosenModel(name, self._by_name[name])
        if name.removesuffix(f":{LATEST}") in self._presets:
            return self._derived(name.removesuffix(f":{LATEST}"))
        base, colon, adapter = name.rpartition(":")
        if not colon:
            return None
        if base not in self._by_name:
            alike = [each for each in self._by_name if _letters(each) == _letters(name)]
            models = {id(self._by_name[each]) for each in alike}
            return ChosenModel(alike[0], self._by_name[alike[0]]) if len(models) == 1 else None
        model = self._by_name[base]
        size = _SIZE_TAG.fullmatch(adapter)
        if (adapter == LATEST or size is not None) and name not in _adapted_names(model):
            return ChosenModel(base, model) if size is None or _has_size(model, size) else None
        return ChosenModel(name, model, adapter)

    def _derived(self, name: str) -> ChosenModel | None:
        preset = self._presets[name]
        chosen = self._named(preset.base)
        return None if chosen is None else chosen._replace(name=name, preset=preset)

    def _adapted(self, name: str, adapter: str) -> ChosenModel | None:
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
        if name is None or (allowed is not None and name not in allowed):
            return None
        return self._routers.get(name)

    def router_names(self, allowed: Collection[str] | None) -> tuple[str, ...]:
        return tuple(name for name in self._routers if allowed is None or name in allowed)

    def add(self, model: ServedModel) -> None:
        self._models.append(model)
        self._by_name.update(dict.fromkeys(model.names, model))

    def remove(self, model: ServedModel) -> None:
        """Remove the names; the model stays registered until `forget`."""
        self._models.remove(model)
        self._replaced.append(model)
        for name in model.names:
            del self._by_name[name]

    def derive(self, name: str, preset: Preset) -> None:
        """Define a name. Raises InvalidRequest if a model or router has it."""
        if name in self._by_name or name in self._routers:
            raise InvalidRequest(f"'{name}' is a model's own name.", param="model", code="invalid_value")
        self._presets[name] = preset

    def forget_preset(self, name: str) -> None:
        self._presets.pop(name, None)

    def is_current(self, model: ServedModel) -> bool:
        return model in self._models

    def replace(self, old: ServedModel, new: ServedModel) -> None:
        """Move the names; `old` stays registered until `forget`."""
        assert old.names == new.names, "it has other names"
        self._models[self._models.index(old)] = new
        self._replaced.append(old)
        self._by_name.update(dict.fromkeys(new.names, new))

    def forget(self, old: ServedModel) -> None:
        self._replaced.remove(old)

    def check_not_ending(self) -> None:
        """Reject work without an engine while the server drains. Raises EngineUnavailable."""
        if any(model.engine.is_ending for model in self._models):
            again_s = EngineState.DRAINING.retry_after_s
            raise EngineUnavailable("The server is shutting down and takes no new work.", again_s)

    @property
    def degraded(self) -> str | None:
        states = [(model.name, model.engine.status()) for model in self._models[1:]]
        failed = [f"{name}: {status.reason}" for name, status in states if status.state is EngineState.FAILED]
        default = self.default.engine.status()
        lame = [default.reason] if default.state is EngineState.READY and default.reason else []
        return "; ".join([*lame, *failed]) or None

    def status(self) -> EngineStatus:
        """Combine all engines; the worst state counts.

        Loading or failed models other than the default are ignored, and sleeping ones are ready.
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


async def available_models(
    models: ModelRegistry, allowed: Collection[str] | None
) -> Sequence[AvailableModel]:
    if models.catalog is None:
        return ()
    await models.catalog.look()
    return _available(models, allowed)


async def ensure_served(models: ModelRegistry, name: str | None, allowed: Collection[str] | None) -> None:
    """Serve the named model of the folder before `choose`. Raises ModelNotLoaded."""
    catalog = models.catalog
    if catalog is None or (name is not None and models.has(name)):
        return
    if name is not None:
        meant = _meant(name, [one.name for one in await available_models(models, allowed)])
        if meant is not None:
            await catalog.bring(meant)
    elif (
        allowed is not None
        and not models.names(allowed)
        and (there := await available_models(models, allowed))
    ):
        await catalog.bring(there[0].name)


def _available(models: ModelRegistry, allowed: Collection[str] | None) -> Sequence[AvailableModel]:
    there = () if models.catalog is None else models.catalog.available
    return [one for one in there if allowed is None or one.name in allowed]


def _meant(name: str, there: Sequence[str]) -> str | None:
    base = name.rpartition(":")[0]
    exact = [one for one in (name, base) if one in there]
    alike = [one for one in there if _letters(one) == _letters(name)] if base else []
    return exact[0] if exact else alike[0] if len(alike) == 1 else None


def _letters(name: str) -> str:
    return name.lower().replace("-", "").replace(":", "")


def _has_size(model: ServedModel, tag: re.Match[str]) -> bool:
    size = float(tag[1]) * (1e6 if tag[2].lower() == "m" else 1e9)
    info = model.engine.info
    is_near = info is not None and 1 / _SIZE_TOLERANCE <= info.num_parameters / size <= _SIZE_TOLERANCE
    return is_near and (tag[3] is None or tag[3].lower() == model.quantisation)


def _adapted_names(model: ServedModel) -> Iterator[str]:
    for status in model.engine.adapters():
        if status.state is not AdapterState.FAILED:
            yield f"{model.name}:{status.adapter.name}"


def _require_adapter(chosen: ChosenModel, allowed: Collection[str] | None, *, param: str | None) -> None:
    name, model = chosen.adapter, chosen.model
    assert name is not None, "the request names none"
    status = next((one for one in model.engine.adapters() if one.adapter.name == name), None)
    if status is None or status.state is AdapterState.FAILED:
        usable = [each for each in _adapted_names(model) if allowed is None or each in allowed]
        reason = None if status is None else status.reason
        names = [each.removeprefix(f"{model.name}:") for each in usable]
        raise AdapterNotFound(name, names, reason=reason, param=param)


def _sums(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    return {label: sum(count[label] for count in counts) for label in counts[0]}


class Ability(enum.Enum):
    """Values are verbs for messages."""

    GENERATE = "generate text"
    HEAR = "hear"
    EMBED = "embed"
    RERANK = "rerank"
    CLASSIFY = "distinguish classes"


def is_able(model: ServedModel, ability: Ability) -> bool:
    """Generating models rerank by a template, embedding models by cosine. An uninspected model may hear."""
    generates, info = model.kind is ModelKind.GENERATES, model.engine.info
    return {
        Ability.GENERATE: generates,
        Ability.HEAR: generates and (info is None or info.hears),
        Ability.EMBED: model.kind is ModelKind.EMBEDS,
        Ability.RERANK: not generates or model.rerank is not None,
        Ability.CLASSIFY: model.kind is ModelKind.RERANKS,
    }[ability]


def choose_able(
    models: ModelRegistry,
    name: str | None,
    allowed: Collection[str] | None,
    ability: Ability,
    *,
    adapter: str | None = None,
) -> ChosenModel:
    """Choose a model with this ability. Raises what `choose` raises, WrongModelKind, and EngineUnavailable
    for an unreadable model."""
    if (name := models.meant(name)) is None:
        name = next(iter(_able_names(models, allowed, ability)), None)
    chosen = models.choose(name, allowed, adapter=adapter)
    if not is_able(chosen.model, ability):
        if (engine := chosen.model.engine).info is None and engine.state is EngineState.FAILED:
            raise unavailable(engine.status())  # nothing is known of its file
        able = _able_names(models, allowed, ability)
        raise WrongModelKind(chosen.name, ability.value, able=able)
    return chosen


def _able_names(models: ModelRegistry, allowed: Collection[str] | None, ability: Ability) -> tuple[str, ...]:
    names = models.names(allowed)
    return tuple(name for name in names if is_able(models.choose(name, allowed).model, ability))
