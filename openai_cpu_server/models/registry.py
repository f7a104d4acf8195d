"""All served models, and which one a name means."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from openai_cpu_server.contract.engine import EngineState, EngineStatus
from openai_cpu_server.errors import EngineUnavailable, ModelNotFound
from openai_cpu_server.models.served import ServedModel

_WORST_FIRST = (
    EngineState.FAILED,
    EngineState.STOPPED,
    EngineState.DRAINING,
    EngineState.LOADING,
    EngineState.RESTARTING,
    EngineState.READY,
)


class Chosen(NamedTuple):
    """A model, and the name that it was asked for by."""

    name: str
    model: ServedModel


class ModelRegistry:
    """`allowed`: the names that a caller may use; None: all. Others do not exist for them."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """At least one; the first is meant where no name is given."""
        assert models, "there is nothing to serve"
        self._models = tuple(models)
        self._by_name = {name: model for model in models for name in model.names}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    @property
    def default(self) -> ServedModel:
        return self._models[0]

    def names(self, allowed: Collection[str] | None) -> tuple[str, ...]:
        return tuple(name for name in self._by_name if allowed is None or name in allowed)

    def choose(self, name: str | None, allowed: Collection[str] | None) -> Chosen:
        """The model of this name; without a name, of the first that is allowed. Raises ModelNotFound."""
        names = self.names(allowed)
        if name is None and names:
            name = names[0]
        if name is None or name not in names:
            raise ModelNotFound(self.default.name if name is None else name)
        return Chosen(name, self._by_name[name])

    def check_not_ending(self) -> None:
        """Raises EngineUnavailable while the server drains. For new work that needs no engine at once."""
        if any(model.engine.is_ending for model in self._models):
            again_s = EngineState.DRAINING.retry_after_s
            raise EngineUnavailable("The server is about to end and takes no new work.", again_s)

    def status(self) -> EngineStatus:
        """All engines as one: in the state of the worst, with the sums of what they hold."""
        all_of_them = [model.engine.status() for model in self._models]
        worst = min(all_of_them, key=lambda status: _WORST_FIRST.index(status.state))
        deaths = [status.last_death for status in all_of_them if status.last_death is not None]
        return EngineStatus(
            state=worst.state,
            reason=worst.reason,
            loaded=min(status.loaded for status in all_of_them),
            timed=worst.timed,
            running=_sums([status.running for status in all_of_them]),
            waiting=_sums([status.waiting for status in all_of_them]),
            kv_tokens=sum(status.kv_tokens for status in all_of_them),
            kv_tokens_used=sum(status.kv_tokens_used for status in all_of_them),
            restarts=sum(status.restarts for status in all_of_them),
            last_death=min(deaths, key=lambda death: death.age_s, default=None),
            rss_bytes=sum(status.rss_bytes for status in all_of_them),
            kernels=worst.kernels,
        )


def _sums(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    return {label: sum(count[label] for count in counts) for label in counts[0]}
