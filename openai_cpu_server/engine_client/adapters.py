"""Adapters of an engine, and the callers that wait for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from openai_cpu_server.contract import messages
from openai_cpu_server.contract.model_info import Adapter, AdapterState, AdapterStatus, LoadedAdapter
from openai_cpu_server.errors import AdapterFailed, ServerError

logger = logging.getLogger(__name__)

K = TypeVar("K")
R = TypeVar("R")


class PendingResults(dict[K, "asyncio.Future[R]"]):
    """Results by key. A caller may leave; the result comes all the same."""

    def expect(self, key: K) -> None:
        self.setdefault(key, asyncio.get_running_loop().create_future())

    async def result(self, key: K) -> R:
        return await asyncio.shield(self[key])

    def settle(self, key: K, result: R) -> None:
        if key in self:
            self.pop(key).set_result(result)

    def end(self, error: Callable[[], ServerError]) -> None:
        while self:
            future = self.popitem()[1]
            future.set_exception(error())
            future.exception()  # all callers may have left


class AdapterControl:
    """Adapters of an engine across its processes, by key. A name may also have a successor that is loading,
    and old ones in use."""

    def __init__(self, adapters: Iterable[Adapter]) -> None:
        self.is_used: Callable[[str], bool] = lambda key: False
        self._statuses: dict[str, AdapterStatus] = {}
        self._named: dict[str, str] = {}
        self._being_loaded: str | None = None
        self._send: Callable[..., None] | None = None
        self._pending = PendingResults[str, AdapterStatus]()
        for adapter in adapters:
            self._add(adapter)
            self._named[adapter.name] = adapter.key

    @property
    def offered(self) -> tuple[AdapterStatus, ...]:
        """Adapters for requests, and those rejected at the start."""
        return tuple(self._statuses[key] for key in self._named.values())

    @property
    def loaded(self) -> tuple[LoadedAdapter, ...]:
        return tuple(status.loaded for status in self._statuses.values() if status.loaded is not None)

    @property
    def is_awaited(self) -> bool:
        return bool(self._pending)

    @property
    def is_pending(self) -> bool:
        return bool(self._unanswered)

    def status(self, key: str) -> AdapterStatus | None:
        return self._statuses.get(key)

    # -- for the engine's client -------------------------------------------------------------------------

    async def load(self, adapter: Adapter) -> AdapterStatus:
        """Load an adapter; an older one of its name is freed with its last request. Raises `AdapterFailed`,
        and then nothing has changed."""
        key = adapter.key
        status = self._statuses.get(key)
        if status is not None and status.state is AdapterState.FAILED:
            self._take_name(adapter.name)  # which drops it, so that it can be tried again
            status = None
        if status is None:
            status = self._add(adapter)
            if self._send is not None:
                self._send(messages.LoadAdapter(adapter))
        if status.state is AdapterState.LOADING:
            self._pending.expect(key)
            status = await self._pending.result(key)
        if status.state is AdapterState.FAILED:
            raise AdapterFailed(status.reason or "It was refused.")
        self._give_name(key)
        self.free()
        return status

    def unload(self, name: str) -> bool:
        if name not in self._named:
            return False
        self._take_name(name)
        self.free()
        return True

    def free(self) -> None:
        """Free adapters once no request uses them."""
        named = self._named.values()
        for key, status in list(self._statuses.items()):
            if status.state is AdapterState.READY and key not in named and not self.is_used(key):
                del self._statuses[key]
                if self._send is not None:
                    self._send(messages.UnloadAdapter(key))

    # -- for the supervisor ------------------------------------------------------------------------------

    def process_started(self) -> tuple[Adapter, ...]:
        self._being_loaded = None
        for key, status in self._statuses.items():
            if status.state is AdapterState.READY:
                self._statuses[key] = AdapterStatus(adapter=status.adapter, state=AdapterState.LOADING)
        return self._unanswered

    def ready(self, send: Callable[..., None]) -> None:
        self._send = send
        if late := self._unanswered:
            send(*[messages.LoadAdapter(adapter) for adapter in late])

    def handle(self, news: messages.AdapterNews) -> None:
        match news:
            case messages.LoadingAdapter(key=key):
                self._being_loaded = key
            case messages.AdapterLoaded(adapter=loaded):
                self._settle(loaded.key, AdapterState.READY, loaded=loaded)
            case messages.AdapterRefused(key=key, reason=reason):
                self._settle(key, AdapterState.FAILED, reason=reason)

    def lost(self) -> None:
        self._send = None

    def died(self, message: str) -> bool:
        """Return True if loading an adapter killed the process."""
        status = self._statuses.get(self._being_loaded or "")
        if status is None:
            return False
        reason = f"Loading {status.adapter.path} killed the engine: {message}."
        self._settle(status.adapter.key, AdapterState.FAILED, reason=reason)
        return True

    def end(self, error: Callable[[], ServerError]) -> None:
        self._pending.end(error)

    # -- inside ------------------------------------------------------------------------------------------

    @property
    def _unanswered(self) -> tuple[Adapter, ...]:
        statuses = self._statuses.values()
        return tuple(status.adapter for status in statuses if status.state is AdapterState.LOADING)

    def _add(self, adapter: Adapter) -> AdapterStatus:
        """Requests do not get the adapter until it is named."""
        status = AdapterStatus(adapter=adapter, state=AdapterState.LOADING)
        self._statuses[adapter.key] = status
        return status

    def _give_name(self, key: str) -> None:
        name = self._statuses[key].adapter.name
        former = self._named.get(name)
        self._named[name] = key
        if former is not None and former != key and self._statuses[former].state is AdapterState.FAILED:
            del self._statuses[former]

    def _take_name(self, name: str) -> None:
        key = self._named.pop(name)
        if self._statuses[key].state is AdapterState.FAILED:
            del self._statuses[key]

    def _settle(
        self, key: str, state: AdapterState, *, loaded: LoadedAdapter | None = None, reason: str | None = None
    ) -> None:
        self._being_loaded = None
        status = self._statuses.get(key)
        if status is None:
            return
        name, path = status.adapter.name, status.adapter.path
        status = AdapterStatus(adapter=status.adapter, state=state, loaded=loaded, reason=reason)
        self._statuses[key] = status
        if state is AdapterState.READY:
            logger.info("loaded the adapter %s, %s", name, path)
            if key in self._pending:
                self._give_name(key)
        else:
            logger.error("the adapter %s is refused: %s", name, reason)
            if key not in self._named.values():
                del self._statuses[key]
        self._pending.settle(key, status)
        self.free()
