"""Tells the engine process which adapters it is to have, and those who wait for one how that went."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from openai_cpu_server.contract.adapter import Adapter, AdapterState, AdapterStatus
from openai_cpu_server.contract.messages import AdapterNews, LoadAdapter, UnloadAdapter
from openai_cpu_server.dispatch.adapters.shelf import Shelf
from openai_cpu_server.errors import AdapterFailed, ServerError

logger = logging.getLogger(__name__)


class AdapterDesk:
    """Takes what the server wants of adapters, and tells the engine process, whichever runs."""

    def __init__(self, adapters: Iterable[Adapter]) -> None:
        self.shelf = Shelf(adapters)
        self._send: Callable[..., None] | None = None
        self._awaited: dict[str, asyncio.Future[AdapterStatus]] = {}
        self.is_used: Callable[[str], bool] = lambda key: False
        """Whether a live request computes with the adapter of this key. The dispatcher knows."""

    @property
    def is_awaited(self) -> bool:
        """Somebody waits for one to be loaded."""
        return bool(self._awaited)

    @property
    def is_owed(self) -> bool:
        """The engine process is to load one."""
        return bool(self.shelf.unanswered)

    # -- for the dispatcher ------------------------------------------------------------------------------

    async def load(self, adapter: Adapter) -> AdapterStatus:
        """Load an adapter; then requests get it for its name, and an older one of that name goes with its
        last request. Raises `AdapterFailed`; then everything is as before.
        """
        key, shelf = adapter.key, self.shelf
        status = shelf.status(key)
        if status is not None and status.state is AdapterState.FAILED:
            shelf.take_name(adapter.name)  # which drops it, so that it can be tried again
            status = None
        if status is None:
            shelf.add(adapter)
            if self._send is not None:
                self._send(LoadAdapter(adapter))
        status = shelf.status(key)
        if status is None or status.state is AdapterState.LOADING:
            awaited = self._awaited.setdefault(key, asyncio.get_running_loop().create_future())
            # Whoever waits may leave: then it is loaded all the same.
            status = await asyncio.shield(awaited)
        if status.state is AdapterState.FAILED:
            raise AdapterFailed(status.reason or "It was refused.")
        shelf.give_name(key)
        self.free()
        return status

    def unload(self, name: str) -> bool:
        """No new request gets it; False if there is none of that name."""
        if self.shelf.named(name) is None:
            return False
        self.shelf.take_name(name)
        self.free()
        return True

    def free(self) -> None:
        """Drop those that no new request gets and no live one uses."""
        for key in self.shelf.retired:
            if not self.is_used(key):
                self.shelf.drop(key)
                if self._send is not None:
                    self._send(UnloadAdapter(key))

    # -- for the supervisor ------------------------------------------------------------------------------

    def process_started(self) -> tuple[Adapter, ...]:
        """What another engine process is to load."""
        self.shelf.process_started()
        return self.shelf.wanted

    def ready(self, send: Callable[..., None]) -> None:
        """The process can be sent commands. It has loaded what it was told at its start."""
        self._send = send
        late = self.shelf.unanswered
        if late:
            send(*[LoadAdapter(adapter) for adapter in late])

    def heard(self, news: AdapterNews) -> None:
        key = self.shelf.heard(news)
        if key is not None:
            self._settled(key)

    def lost(self) -> None:
        """The process hears nothing any more."""
        self._send = None

    def died(self, message: str) -> bool:
        """Whether the process has died of an adapter, which is not loaded again."""
        key = self.shelf.process_died(message)
        if key is not None:
            self._settled(key)
        return key is not None

    def end(self, error: Callable[[], ServerError]) -> None:
        """No engine will load them any more."""
        while self._awaited:
            future = self._awaited.popitem()[1]
            if not future.done():
                future.set_exception(error())
                future.exception()  # nobody may wait for it any more

    def _settled(self, key: str) -> None:
        """It is loaded or refused."""
        status = self.shelf.status(key)
        assert status is not None
        awaited = self._awaited.pop(key, None)
        if status.state is AdapterState.READY:
            logger.info("loaded the adapter %s, %s", status.adapter.name, status.adapter.path)
            if awaited is not None:
                self.shelf.give_name(key)
        else:
            logger.error("the adapter %s is refused: %s", status.adapter.name, status.reason)
            if not self.shelf.has_name(key):
                self.shelf.drop(key)
        if awaited is not None and not awaited.done():
            awaited.set_result(status)
        self.free()
