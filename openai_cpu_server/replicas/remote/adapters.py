"""Adapters that change while replicas serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from openai_cpu_server.contract.model_info import Adapter, AdapterState, AdapterStatus
from openai_cpu_server.errors import AdapterFailed
from openai_cpu_server.replicas.remote.session import ReplicaMember
from openai_cpu_server.replicas.wire import DropAdapter, ReplicaLost

logger = logging.getLogger(__name__)

SETTLED_S = 5.0
"""Age at which an adapter is passed on. A newer one may be on its way to all replicas, or off them."""


@dataclass
class _Offered:
    adapter: Adapter
    since_s: float
    holders: set[str] = field(default_factory=set)


@dataclass(eq=False)
class ReplicaAdapters:
    """Adapters of all replicas, also from ended API processes."""

    replicas: Mapping[str, ReplicaMember]
    clock: Callable[[], float]
    _loaded: dict[str, Adapter] = field(default_factory=dict)
    _offered: dict[str, _Offered] = field(default_factory=dict)
    _passing: set[asyncio.Task[AdapterStatus | None]] = field(default_factory=set)

    async def load(self, adapter: Adapter, former: Adapter | None) -> AdapterStatus | None:
        """Load at all ready replicas, and return None if none has answered. Raises AdapterFailed, and then
        the adapter is loaded nowhere."""
        ready = [name for name, member in self.replicas.items() if member.is_ready]
        answers = await asyncio.gather(*(self._load_at(name, adapter) for name in ready))
        statuses = [status for status in answers if status is not None]
        failed = next((one for one in statuses if one.state is AdapterState.FAILED), None)
        if failed is not None:
            by_replica = zip(ready, answers, strict=True)
            taken = [name for name, one in by_replica if one and one.state is AdapterState.READY]
            if former is None:
                self._drop(adapter.name)
            elif former.key != adapter.key:
                await asyncio.gather(*(self._load_at(replica, former) for replica in taken))
            raise AdapterFailed(failed.reason or "It was refused.")
        if not statuses:
            return None
        self._loaded[adapter.name] = adapter
        return statuses[0]

    def unload(self, name: str, keys: set[str]) -> None:
        self._loaded.pop(name, None)
        for member in self.replicas.values():
            member.adapters_requested -= keys
        self._drop(name)

    def reported(self, replica: str) -> None:
        member = self.replicas[replica]
        if member.report is None:
            return
        statuses = {status.adapter.key: status for status in member.report.adapters}
        member.adapters_seen |= statuses.keys()
        self._note(replica, statuses)
        if not member.is_ready:
            return
        names = {status.adapter.name for status in statuses.values()}
        for adapter in list(self._missing(member, names)):
            if adapter.key not in statuses.keys() | member.adapters_requested:
                member.adapters_requested.add(adapter.key)
                task = asyncio.create_task(self._load_at(replica, adapter))
                self._passing.add(task)
                task.add_done_callback(self._passing.discard)

    # -- inside ------------------------------------------------------------------------------------------

    def _note(self, replica: str, statuses: Mapping[str, AdapterStatus]) -> None:
        ready = {key: one.adapter for key, one in statuses.items() if one.state is AdapterState.READY}
        for key, adapter in ready.items():
            self._offered.setdefault(key, _Offered(adapter, self.clock())).holders.add(replica)
        for key in list(self._offered):
            holders = self._offered[key].holders
            if key not in ready:
                holders.discard(replica)
            if not any(name in self.replicas for name in holders):
                del self._offered[key]

    def _missing(self, member: ReplicaMember, names: set[str]) -> Iterator[Adapter]:
        """An adapter that the replica once had was lost by `unload`, and is not sent again."""
        yield from self._loaded.values()
        for key, offered in self._offered.items():
            is_settled = self.clock() - offered.since_s >= SETTLED_S
            if is_settled and offered.adapter.name not in names and key not in member.adapters_seen:
                yield offered.adapter

    def _drop(self, name: str) -> None:
        for member in self.replicas.values():
            member.session.send(DropAdapter(name))

    async def _load_at(self, replica: str, adapter: Adapter) -> AdapterStatus | None:
        """Return None if the replica was lost, which proves nothing about the adapter."""
        member = self.replicas.get(replica)
        if member is None:
            return None
        try:
            status = await member.session.link.load_adapter(adapter)
        except ReplicaLost as error:
            logger.warning("the replica %s was lost while it loaded %s: %s", replica, adapter.name, error)
            return None
        if status.state is AdapterState.FAILED:
            member.adapters_refused.add(adapter.key)
        return status
