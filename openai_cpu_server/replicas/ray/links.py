"""The ways to engine replicas: Ray says where they are, and carries what is asked seldom."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ray.serve.handle import DeploymentHandle, DeploymentResponse

from openai_cpu_server.config.environment import foreign_settings
from openai_cpu_server.replicas.link import Link, ReplicaLost
from openai_cpu_server.replicas.ray.addressed import Addressed
from openai_cpu_server.replicas.ray.tls import client_tls
from openai_cpu_server.replicas.remote.stream_link import StreamLink
from openai_cpu_server.replicas.wire import DoorPlate

logger = logging.getLogger(__name__)


class RayReplica:
    """What a `StreamLink` asks of one replica with Ray's calls. They raise `ReplicaLost`."""

    def __init__(self, handle: DeploymentHandle, to: Addressed) -> None:
        self._to = to
        self._asking = handle.door
        self._loading = handle.load_adapter

    async def door(self) -> DoorPlate:
        return DoorPlate(*await _answered(self._asking.remote(self._to)))

    async def load_adapter(self, adapter: bytes) -> bytes:
        return bytes(await _answered(self._loading.remote(self._to, adapter)))


async def _answered(response: DeploymentResponse) -> Any:
    try:
        return await response
    except asyncio.CancelledError:
        response.cancel()
        raise
    except Exception as error:  # of Ray's many: it died, its node did, it cannot be reached, it was stopped
        raise ReplicaLost(_said(error)) from None


class Roster:
    """Follows which replicas of a deployment run. Belongs to one event loop's thread."""

    def __init__(self, handle: DeploymentHandle, changed: Callable[[Mapping[str, Link]], None]) -> None:
        """`changed` is told of all that run, whenever that changes."""
        self._handle = handle
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, StreamLink] = {}
        self._tls = client_tls(foreign_settings())
        self._known: frozenset[str] = frozenset()

    async def follow(self) -> None:
        """Ask once, which waits for a first replica; from then on the router tells."""
        while True:
            try:
                await self._handle.known.remote(Addressed("", self._tell))
                return
            except Exception as error:  # of Ray's many: the replica that was asked died, say
                logger.warning("no engine replica has answered yet: %s", _said(error))
                await asyncio.sleep(1.0)

    def _tell(self, names: frozenset[str]) -> None:
        """In whichever thread the router runs."""
        if names != self._known:
            self._known = names
            self._loop.call_soon_threadsafe(self._update, names)

    def _update(self, names: frozenset[str]) -> None:
        self._links = {name: self._links.get(name) or self._link(name) for name in names}
        self._changed(self._links)

    def _link(self, name: str) -> StreamLink:
        replica = RayReplica(self._handle, Addressed(name, self._tell))
        return StreamLink(replica.door, replica.load_adapter, tls=self._tls)


def _said(error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:300]
