from __future__ import annotations

import asyncio
import logging
import math
import os
import time

import msgspec
import ray.util

from openai_cpu_server.config.folders import foreign_settings, tune_engines
from openai_cpu_server.config.settings import Settings
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import Adapter
from openai_cpu_server.engine_client.subscribers import NO_OBSERVER
from openai_cpu_server.engine_client.supervisor import Supervisor
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.host import numa_nodes
from openai_cpu_server.observe.logs import set_up_logs
from openai_cpu_server.replicas.host.host import CpuSpending, ReplicaDoor, ReplicaHost
from openai_cpu_server.replicas.ray.scaling import autoscaling_stats
from openai_cpu_server.replicas.ray.surroundings import CpuClaim, server_tls
from openai_cpu_server.replicas.wire import DoorAddress
from openai_cpu_server.server.model_builder import ModelParts, reader_pool, supervised
from openai_cpu_server.server.plans import ModelPlan, planned_models
from openai_cpu_server.server.prefix_files import PrefixFiles

logger = logging.getLogger(__name__)


class EngineReplica:
    """Runs one model. It counts as started also when the model has failed to load."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, settings: Settings, model: str
    ) -> None:
        set_up_logs(settings.log_level, settings.log_format)
        tune_engines()
        self._settings = settings
        self._claim = CpuClaim()
        spending = CpuSpending()
        self._supervisor = await asyncio.to_thread(self._supervised, model, spending)
        lease_s = settings.ray.lease_s
        self._host = ReplicaHost(self._supervisor, lease_s=lease_s, spending=spending)
        self._door = ReplicaDoor(self._host, sending_s=lease_s)
        self._address = await self._door.open(
            ray.util.get_node_ip_address(), tls=server_tls(foreign_settings())
        )
        self._running = asyncio.create_task(self._host.run())
        await self._host.settled()

    # -- for API replicas; `to` has led the call here ----------------------------------------------------

    async def ping(self, to: str) -> None:
        """Do nothing, because the router reports the running replicas when it routes the call."""

    async def door(self, to: str) -> DoorAddress:
        return self._address

    async def load_adapter(self, to: str, adapter: bytes) -> bytes:
        status = await self._host.load_adapter(msgspec.msgpack.decode(adapter, type=Adapter))
        return msgspec.msgpack.encode(status)

    # -- for Ray Serve -----------------------------------------------------------------------------------

    async def check_health(self) -> None:
        """Fail if the engine has failed for longer than `retry_s`. Raises RuntimeError."""
        if self._running.done():
            raise RuntimeError("the engine is no longer watched")
        failed_s, retry_s = self._supervisor.failed_s, self._settings.ray.retry_s
        if failed_s is not None and time.monotonic() - failed_s > retry_s:
            raise RuntimeError(f"the engine has failed: {self._supervisor.reason}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return autoscaling_stats(self._supervisor.state, self._supervisor.news.forecast)

    async def __del__(self) -> None:
        host = getattr(self, "_host", None)
        if host is not None and host.state is not EngineState.STOPPED:
            await host.left()  # Ray knows nothing of sessions; it kills slow ones after `drain_s`
            await host.close()
            await self._door.close()

    # -- inside ------------------------------------------------------------------------------------------

    def _supervised(self, model: str, spending: CpuSpending) -> Supervisor:
        plan: ModelPlan | None = None
        try:
            plan = next(plan for plan in planned_models(self._settings) if plan.name == model)
            with reader_pool(self._settings, [plan]) as readers:
                parts = ModelParts.open(self._settings, plan, None, readers)
            if plan.options.cache_file == "auto":
                parts = parts.keeping_prefixes(PrefixFiles.of_user(num_models=1))
        except StartupError as error:
            path = str(plan.path) if plan is not None else model
            broken = supervised(
                self._settings, EngineOptions(model_path=path), NO_OBSERVER, begins_asleep=True
            )
            broken.fail(str(error))
            return broken
        cpus = self._cpus()
        options = msgspec.structs.replace(parts.options, reports_forecast=True)
        if parts.options.threads is None:
            threads = len(cpus) or max(1, math.floor(self._settings.ray.cpus))
            options = msgspec.structs.replace(options, threads=threads)
        return supervised(self._settings, options, spending, begins_asleep=True, cpus=cpus)

    def _cpus(self) -> tuple[int, ...]:
        wanted = self._settings.ray.cpus
        if self._settings.ray.pin == "off" or not wanted.is_integer() or not hasattr(os, "sched_getaffinity"):
            return ()
        cpus = self._claim.claim(int(wanted), os.sched_getaffinity(0), numa_nodes())
        if cpus:
            logger.info("the engine computes on the CPUs %s", ", ".join(map(str, cpus)))
        else:
            logger.warning("there are not %d free CPUs here: the engine shares them with others", wanted)
        return cpus
