"""The ways to engine replicas: streaming deployment handles."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping

from ray.serve.handle import DeploymentHandle

from openai_cpu_server.replicas.link import Link, ReplicaLost
from openai_cpu_server.replicas.ray.addressed import Addressed

logger = logging.getLogger(__name__)


class RayLink:
    """To one replica. A `Link`."""

    def __init__(self, handle: DeploymentHandle, to: Addressed) -> None:
        self._to = to
        self._telling = handle.tell
        self._loading = handle.load_adapter
        self._attending = handle.options(method_name="attend", stream=True)

    async def attend(self, lessee: str) -> AsyncIterator[bytes]:
        stream = self._attending.remote(self._to, lessee)
        try:
            async for payload in stream:
                yield payload
        except (
            Exception
        ) as error:  # of Ray's many: it died, its node did, it cannot be reached, it was stopped
            raise ReplicaLost(_said(error)) from None
        finally:
            stream.cancel()

    async def tell(self, lessee: str, orders: bytes) -> bool:
        response = self._telling.remote(self._to, lessee, orders)
        try:
            return bool(await response)
        except asyncio.CancelledError:
            response.cancel()
            raise
        except Exception as error:  # as above
            raise ReplicaLost(_said(error)) from None

    async def load_adapter(self, adapter: bytes) -> bytes:
        try:
            return bytes(await self._loading.remote(self._to, adapter))
        except Exception as error:  # as above
            raise ReplicaLost(_said(error)) from None


class Roster:
    """Follows which replicas of a deployment run. Belongs to one event loop's thread."""

    def __init__(self, handle: DeploymentHandle, changed: Callable[[Mapping[str, Link]], None]) -> None:
        """`changed` is told of all that run, whenever that changes."""
        self._handle = handle
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, RayLink] = {}
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
        self._links = {
            name: self._links.get(name) or RayLink(self._handle, Addressed(name, self._tell))
            for name in names
        }
        self._changed(self._links)


def _said(error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:300]
