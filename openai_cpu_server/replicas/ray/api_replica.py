"""API replica: a Ray actor with the Starlette application and links to engine replicas."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from ray.serve.handle import DeploymentHandle, DeploymentResponse

from openai_cpu_server.config.folders import foreign_settings
from openai_cpu_server.config.settings import Settings
from openai_cpu_server.contract.model_info import Adapter, AdapterStatus
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.logs import set_up_logs
from openai_cpu_server.observe.telemetry import ModelTelemetry, Telemetry
from openai_cpu_server.observe.tracing import open_tracing
from openai_cpu_server.replicas.ray.surroundings import ReplicaAddress, client_tls
from openai_cpu_server.replicas.remote.engine import RemoteEngine
from openai_cpu_server.replicas.remote.proxy import StreamLink
from openai_cpu_server.replicas.wire import DoorAddress, ReplicaLink, ReplicaLost
from openai_cpu_server.server.model_builder import ModelParts, reader_pool
from openai_cpu_server.server.plans import planned_models, planned_routers
from openai_cpu_server.server.run import open_api, web_serving

logger = logging.getLogger(__name__)


async def _answered(response: DeploymentResponse) -> Any:
    try:
        return await response
    except asyncio.CancelledError:
        response.cancel()
        raise
    except Exception as error:  # of Ray's many: it died, its node did, it cannot be reached, it was stopped
        raise ReplicaLost(_first_line(error)) from None


class ReplicaRoster:
    def __init__(
        self, handle: DeploymentHandle, changed: Callable[[Mapping[str, ReplicaLink]], None]
    ) -> None:
        self._handle = handle
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, StreamLink] = {}
        self._tls = client_tls(foreign_settings())
        self._names: frozenset[str] = frozenset()

    async def follow(self) -> None:
        """Make one call, which waits for a first replica. The router then reports changes."""
        while True:
            try:
                await self._handle.ping.remote(ReplicaAddress("", self._notify))
                return
            except Exception as error:  # Ray raises many types, for example if the replica has died
                logger.warning("no engine replica has answered yet: %s", _first_line(error))
                await asyncio.sleep(1.0)

    def _notify(self, names: frozenset[str]) -> None:
        """Called in the router's thread."""
        if names != self._names:
            self._names = names
            self._loop.call_soon_threadsafe(self._update, names)

    def _update(self, names: frozenset[str]) -> None:
        self._links = {name: self._links.get(name) or self._link(name) for name in names}
        self._changed(self._links)

    def _link(self, name: str) -> StreamLink:
        to, address, loading = (
            ReplicaAddress(name, self._notify),
            self._handle.door,
            self._handle.load_adapter,
        )

        async def door() -> DoorAddress:
            return DoorAddress(*await _answered(address.remote(to)))

        async def load_adapter(adapter: Adapter) -> AdapterStatus:
            status = await _answered(loading.remote(to, msgspec.msgpack.encode(adapter)))
            return msgspec.msgpack.decode(status, type=AdapterStatus)

        return StreamLink(door, load_adapter, tls=self._tls)


def _first_line(error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:300]


_MIB = 1024 * 1024


class ApiReplica:
    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, settings: Settings, engines: Mapping[str, DeploymentHandle]
    ) -> None:
        """`engines`: by model. Raises StartupError if a model's vocabulary cannot be read here."""
        set_up_logs(settings.log_level, settings.log_format)
        self._settings = settings
        self._tasks: list[asyncio.Task[None]] = []
        self._engines: list[RemoteEngine] = []
        plans = planned_models(settings)
        self._readers = reader_pool(settings, plans)
        opening = (asyncio.to_thread(ModelParts.open, settings, plan, None, self._readers) for plan in plans)
        parts = [await each for each in opening]
        tracing = open_tracing(settings.traces_endpoint) if settings.traces_endpoint else None
        self._telemetry = Telemetry.new(model=plans[0].name, tracing=tracing)
        self._readers.on_death = self._telemetry.metrics.reader_died
        served = [self._served(one, engines[one.plan.name]) for one in parts]
        kinds = {name: model.kind for model in served for name in model.names}
        routers, takes_any_name = planned_routers(settings, plans, kinds), settings.any_model_name
        registry = ModelRegistry(served, routers, takes_any_name=takes_any_name)
        self._api = open_api(settings, registry, self._telemetry)
        self._open, self._listening = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()
        await self._open.enter_async_context(self._api.working())
        if settings.ray.ingress == "replicas":
            close_s = math.ceil(0.9 * settings.ray.drain_s)
            serving = web_serving(settings, self._api.api, close_s=close_s)
            self._tasks.append(await self._listening.enter_async_context(serving))

    def __serve_build_asgi_app__(self) -> Callable[..., Awaitable[None]]:
        return self._api.api.app

    async def check_health(self) -> None:
        """Let Serve replace the replica if a background task has ended. Raises RuntimeError."""
        if any(task.done() for task in self._tasks):
            raise RuntimeError("it no longer listens, or no longer follows the engine replicas")

    async def __del__(self) -> None:
        if not hasattr(self, "_open"):
            return
        await self._listening.aclose()
        for engine in self._engines:
            engine.drain()
        await self._open.aclose()
        for engine in self._engines:
            await engine.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self._readers.close)
        self._telemetry.close()

    def _served(self, parts: ModelParts, handle: DeploymentHandle) -> ServedModel:
        settings = self._settings
        engine = RemoteEngine(
            max_queue=settings.max_queue,
            lease_s=settings.ray.lease_s,
            max_held_bytes=settings.stream_buffer_mb * _MIB,
            num_routers=settings.ray.api_replicas,
            spent=ModelTelemetry(self._telemetry, parts.plan.name).spent,
        )
        self._engines.append(engine)
        self._tasks.append(asyncio.create_task(_follow(engine, handle)))
        return parts.served(engine)


async def _follow(engine: RemoteEngine, handle: DeploymentHandle) -> None:
    await ReplicaRoster(handle, engine.set_replicas).follow()
    await engine.run()
