"""Which adapters an engine is to have, and how each of them stands. Pure bookkeeping."""

from __future__ import annotations

from collections.abc import Iterable

from openai_cpu_server.contract.adapter import Adapter, AdapterState, AdapterStatus, LoadedAdapter
from openai_cpu_server.contract.messages import AdapterLoaded, AdapterNews, AdapterRefused, LoadingAdapter


class Shelf:
    """Adapters by key.

    Of one name there may be several: one that requests may name, one that is to take its place once it is
    loaded, and old ones with which some requests still run.
    """

    def __init__(self, adapters: Iterable[Adapter]) -> None:
        self._statuses: dict[str, AdapterStatus] = {}
        self._named: dict[str, str] = {}
        """The key of the one that requests get for a name."""
        self._being_loaded: str | None = None
        """What the present process says that it is loading."""
        for adapter in adapters:
            self.add(adapter)
            self._named[adapter.name] = adapter.key

    @property
    def wanted(self) -> tuple[Adapter, ...]:
        """Those that an engine process is to have: all but those that were refused."""
        statuses = self._statuses.values()
        return tuple(status.adapter for status in statuses if status.state is not AdapterState.FAILED)

    @property
    def unanswered(self) -> tuple[Adapter, ...]:
        """Those of them of which the present process has said nothing."""
        return tuple(
            status.adapter for status in self._statuses.values() if status.state is AdapterState.LOADING
        )

    @property
    def loaded(self) -> tuple[LoadedAdapter, ...]:
        return tuple(status.loaded for status in self._statuses.values() if status.loaded is not None)

    @property
    def offered(self) -> tuple[AdapterStatus, ...]:
        """Those that requests may name, and those that were refused at the start."""
        return tuple(self._statuses[key] for key in self._named.values())

    @property
    def retired(self) -> tuple[str, ...]:
        """The keys of those that no new request gets: they go with their last one."""
        named = self._named.values()
        return tuple(
            key
            for key, status in self._statuses.items()
            if key not in named and status.state is AdapterState.READY
        )

    def status(self, key: str) -> AdapterStatus | None:
        return self._statuses.get(key)

    def named(self, name: str) -> AdapterStatus | None:
        """The one that requests get for this name."""
        return self._statuses.get(self._named.get(name, ""))

    def has_name(self, key: str) -> bool:
        return key in self._named.values()

    def add(self, adapter: Adapter) -> None:
        """It is to be loaded. Nobody gets it before it is named."""
        self._statuses[adapter.key] = AdapterStatus(adapter=adapter, state=AdapterState.LOADING)

    def give_name(self, key: str) -> None:
        """Requests get this one for its name from now on."""
        name = self._statuses[key].adapter.name
        former = self._named.get(name)
        self._named[name] = key
        if former is not None and former != key and self._statuses[former].state is AdapterState.FAILED:
            del self._statuses[former]

    def take_name(self, name: str) -> None:
        """No request may name it any more."""
        key = self._named.pop(name)
        if self._statuses[key].state is AdapterState.FAILED:
            del self._statuses[key]

    def drop(self, key: str) -> None:
        """Nobody needs it any more. It has no name."""
        del self._statuses[key]

    def process_started(self) -> None:
        """Another engine process begins to load all that is wanted."""
        self._being_loaded = None
        for key, status in self._statuses.items():
            if status.state is AdapterState.READY:
                self._statuses[key] = AdapterStatus(adapter=status.adapter, state=AdapterState.LOADING)

    def heard(self, news: AdapterNews) -> str | None:
        """Returns the key of the adapter that is loaded, or refused, now."""
        match news:
            case LoadingAdapter(key=key):
                self._being_loaded = key
                return None
            case AdapterLoaded(adapter=loaded):
                return self._settle(loaded.key, AdapterState.READY, loaded=loaded)
            case AdapterRefused(adapter=refused):
                return self._settle(refused.key, AdapterState.FAILED, reason=refused.reason)

    def process_died(self, message: str) -> str | None:
        """The adapter, by key, that it has died of, which is not loaded again; None: it has died of none."""
        key = self._being_loaded
        if key is None:
            return None
        status = self._statuses.get(key)
        path = status.adapter.path if status is not None else "an adapter"
        return self._settle(key, AdapterState.FAILED, reason=f"Loading {path} has killed it: {message}.")

    def _settle(
        self,
        key: str,
        state: AdapterState,
        *,
        loaded: LoadedAdapter | None = None,
        reason: str | None = None,
    ) -> str | None:
        self._being_loaded = None
        status = self._statuses.get(key)
        if status is None:
            return None
        self._statuses[key] = AdapterStatus(adapter=status.adapter, state=state, loaded=loaded, reason=reason)
        return key
