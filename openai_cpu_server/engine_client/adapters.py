"""Adapters that an engine should have, their states, and the callers that wait for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from openai_cpu_server.contract.messages import (
    AdapterLoaded,
    AdapterNews,
    AdapterRefused,
    LoadAdapter,
    LoadingAdapter,
    UnloadAdapter,
)
from openai_cpu_server.contract.model_info import Adapter, AdapterState, AdapterStatus, LoadedAdapter
from openai_cpu_server.errors import AdapterFailed, ServerError

logger = logging.getLogger(__name__)


class AdapterTable:
    """Adapters by key.

    One name may have several: the one that requests may name, a successor that is being loaded, and old ones
    that are still in use.
    """

    def __init__(self, adapters: Iterable[Adapter]) -> None:
        self._statuses: dict[str, AdapterStatus] = {}
        self._named: dict[str, str] = {}
        """Key of the adapter that requests get for a name."""
        self._being_loaded: str | None = None
        for adapter in adapters:
            self.add(adapter)
            self._named[adapter.name] = adapter.key

    @property
    def wanted(self) -> tuple[Adapter, ...]:
        """Adapters that an engine process should have: all but rejected ones."""
        statuses = self._statuses.values()
        return tuple(status.adapter for status in statuses if status.state is not AdapterState.FAILED)

    @property
    def unanswered(self) -> tuple[Adapter, ...]:
        """Wanted adapters that the present process has not reported yet."""
        return tuple(
            status.adapter for status in self._statuses.values() if status.state is AdapterState.LOADING
        )

    @property
    def loaded(self) -> tuple[LoadedAdapter, ...]:
        return tuple(status.loaded for status in self._statuses.values() if status.loaded is not None)

    @property
    def offered(self) -> tuple[AdapterStatus, ...]:
        """Adapters that requests may name, and those that were rejected at the start."""
        return tuple(self._statuses[key] for key in self._named.values())

    @property
    def retired(self) -> tuple[str, ...]:
        """Keys of adapters that no new request gets. They are freed with their last request."""
        named = self._named.values()
        return tuple(
            key
            for key, status in self._statuses.items()
            if key not in named and status.state is AdapterState.READY
        )

    def status(self, key: str) -> AdapterStatus | None:
        return self._statuses.get(key)

    def named(self, name: str) -> AdapterStatus | None:
        return self._statuses.get(self._named.get(name, ""))

    def has_name(self, key: str) -> bool:
        return key in self._named.values()

    def add(self, adapter: Adapter) -> None:
        """Add an adapter to be loaded. Requests do not get it until it is named."""
        self._statuses[adapter.key] = AdapterStatus(adapter=adapter, state=AdapterState.LOADING)

    def give_name(self, key: str) -> None:
        name = self._statuses[key].adapter.name
        former = self._named.get(name)
        self._named[name] = key
        if former is not None and former != key and self._statuses[former].state is AdapterState.FAILED:
            del self._statuses[former]

    def take_name(self, name: str) -> None:
        key = self._named.pop(name)
        if self._statuses[key].state is AdapterState.FAILED:
            del self._statuses[key]

    def drop(self, key: str) -> None:
        del self._statuses[key]

    def process_started(self) -> None:
        self._being_loaded = None
        for key, status in self._statuses.items():
            if status.state is AdapterState.READY:
                self._statuses[key] = AdapterStatus(adapter=status.adapter, state=AdapterState.LOADING)

    def heard(self, news: AdapterNews) -> str | None:
        """Return the key of an adapter that has now been loaded or rejected."""
        match news:
            case LoadingAdapter(key=key):
                self._being_loaded = key
                return None
            case AdapterLoaded(adapter=loaded):
                return self._settle(loaded.key, AdapterState.READY, loaded=loaded)
            case AdapterRefused(adapter=refused):
                return self._settle(refused.key, AdapterState.FAILED, reason=refused.reason)

    def process_died(self, message: str) -> str | None:
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


class AdapterControl:
    """Interface to the adapters of an engine across its successive processes."""

    def __init__(self, adapters: Iterable[Adapter]) -> None:
        self.table = AdapterTable(adapters)
        self._send: Callable[..., None] | None = None
        self._awaited: dict[str, asyncio.Future[AdapterStatus]] = {}
        self.is_used: Callable[[str], bool] = lambda key: False
        """Set by the client: True if a live request uses the adapter with this key."""

    @property
    def is_awaited(self) -> bool:
        return bool(self._awaited)

    @property
    def is_owed(self) -> bool:
        return bool(self.table.unanswered)

    # -- for the engine's client -------------------------------------------------------------------------

    async def load(self, adapter: Adapter) -> AdapterStatus:
        """Load an adapter and give it its name; an older one of that name is freed with its last request.
        Raises `AdapterFailed`, and then nothing has changed."""
        key, table = adapter.key, self.table
        status = table.status(key)
        if status is not None and status.state is AdapterState.FAILED:
            table.take_name(adapter.name)  # which drops it, so that it can be tried again
            status = None
        if status is None:
            table.add(adapter)
            if self._send is not None:
                self._send(LoadAdapter(adapter))
        status = table.status(key)
        if status is None or status.state is AdapterState.LOADING:
            awaited = self._awaited.setdefault(key, asyncio.get_running_loop().create_future())
            # Whoever waits may leave: then it is loaded all the same.
            status = await asyncio.shield(awaited)
        if status.state is AdapterState.FAILED:
            raise AdapterFailed(status.reason or "It was refused.")
        table.give_name(key)
        self.free()
        return status

    def unload(self, name: str) -> bool:
        """Withhold the adapter from new requests. Return False if there is none of this name."""
        if self.table.named(name) is None:
            return False
        self.table.take_name(name)
        self.free()
        return True

    def free(self) -> None:
        for key in self.table.retired:
            if not self.is_used(key):
                self.table.drop(key)
                if self._send is not None:
                    self._send(UnloadAdapter(key))

    # -- for the supervisor ------------------------------------------------------------------------------

    def process_started(self) -> tuple[Adapter, ...]:
        self.table.process_started()
        return self.table.wanted

    def ready(self, send: Callable[..., None]) -> None:
        """Start sending commands. The process has loaded the adapters of its start."""
        self._send = send
        late = self.table.unanswered
        if late:
            send(*[LoadAdapter(adapter) for adapter in late])

    def heard(self, news: AdapterNews) -> None:
        key = self.table.heard(news)
        if key is not None:
            self._settled(key)

    def lost(self) -> None:
        self._send = None

    def died(self, message: str) -> bool:
        key = self.table.process_died(message)
        if key is not None:
            self._settled(key)
        return key is not None

    def end(self, error: Callable[[], ServerError]) -> None:
        while self._awaited:
            future = self._awaited.popitem()[1]
            if not future.done():
                future.set_exception(error())
                future.exception()  # nobody may wait for it any more

    def _settled(self, key: str) -> None:
        status = self.table.status(key)
        assert status is not None
        awaited = self._awaited.pop(key, None)
        if status.state is AdapterState.READY:
            logger.info("loaded the adapter %s, %s", status.adapter.name, status.adapter.path)
            if awaited is not None:
                self.table.give_name(key)
        else:
            logger.error("the adapter %s is refused: %s", status.adapter.name, status.reason)
            if not self.table.has_name(key):
                self.table.drop(key)
        if awaited is not None and not awaited.done():
            awaited.set_result(status)
        self.free()
