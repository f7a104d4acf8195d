"""The Serve application, for `serve run`, `serve deploy` and `openai-cpu-server ray`."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import (
    AutoscalingConfig,
    AutoscalingPolicy,
    HTTPOptions,
    ProxyLocation,
    RequestRouterConfig,
)

from openai_cpu_server.config.folders import expanded_path, export_settings
from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.config.settings import RayTable, Settings
from openai_cpu_server.errors import StartupError
from openai_cpu_server.replicas.ray.api_replica import ApiReplica
from openai_cpu_server.replicas.ray.engine_replica import EngineReplica
from openai_cpu_server.replicas.ray.scaling import WaitPolicy
from openai_cpu_server.replicas.ray.surroundings import OF_NEW_CLUSTER, of_replicas
from openai_cpu_server.server.plans import planned_models
from openai_cpu_server.server.run import check_answer_cache, listening

_GIB = 1024**3
_ROUTER = "openai_cpu_server.replicas.ray.request_router.EngineRequestRouter"
_POLICY = f"{WaitPolicy.__module__}.{WaitPolicy.__name__}"
_OF_SCALING = (
    "address",
    "name",
    "replicas",
    "max_replicas",
    "target_wait_ms",
    "up_after_s",
    "down_after_s",
    "health_s",
)
"""Keys of `[ray]` that no replica needs."""
_OF_ENGINES = ("memory_gb", "resources", "one_per_node", "pin", "retry_s", "cpus")
_OF_API = ("api_replicas", "api_cpus", "ingress", "drain_s")
_NO_LIMIT = 1_000_000
"""Turns off Ray Serve's own limits, because the API and the engine's queue have theirs."""


def build(args: Mapping[str, Any]) -> Application:
    """`args`: path of the TOML file (`config`), and options of `serve`. Raises StartupError."""
    options = {name: value for name, value in args.items() if name != "config"}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    if "config" in args:
        arguments.append(f"--config={args['config']}")
    return serve_application(portable(read_settings(arguments)))


def portable(settings: Settings) -> Settings:
    """Return settings that can be pickled. Raises StartupError for unsupported features."""
    check_answer_cache(settings)
    if settings.ssl_certfile is not None and settings.ray.ingress == "proxy":
        raise StartupError("Ray's proxies speak plain HTTP here: leave ssl_certfile out, or have no proxies")
    return Settings.model_construct(settings.model_fields_set, **settings.__dict__)


def serve_application(settings: Settings) -> Application:
    engines = {plan.name: _engines(settings, plan.name) for plan in planned_models(settings)}
    own_settings = _without(settings, *_OF_ENGINES, *_OF_SCALING)
    replica = serve.ingress()(ApiReplica) if settings.ray.ingress == "proxy" else ApiReplica
    api = serve.deployment(replica).options(
        name="api",
        num_replicas=settings.ray.api_replicas,
        max_ongoing_requests=_NO_LIMIT,
        ray_actor_options={"num_cpus": settings.ray.api_cpus, "runtime_env": {"env_vars": of_replicas()}},
        graceful_shutdown_timeout_s=settings.ray.drain_s,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=settings.ray.health_s,
    )
    return api.bind(own_settings, engines)


def _without(settings: Settings, *names: str) -> Settings:
    """Ray restarts replicas whose arguments have changed."""
    table = {name: value for name, value in settings.ray if name not in names}
    return settings.model_copy(update={"ray": RayTable.model_validate(table)})


def _engines(settings: Settings, model: str) -> Application:
    ray = settings.ray
    deployment = serve.deployment(EngineReplica).options(
        name=engine_name(model),
        max_ongoing_requests=_NO_LIMIT,
        ray_actor_options={**_resources(ray), "runtime_env": {"env_vars": of_replicas()}},
        request_router_config=RequestRouterConfig(request_router_class=_ROUTER),
        graceful_shutdown_timeout_s=ray.drain_s,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=ray.health_s,
        health_check_timeout_s=max(10.0, 3 * ray.health_s),
    )
    own_settings = _without(settings, *_OF_API, *_OF_SCALING)
    if ray.one_per_node:
        deployment = deployment.options(max_replicas_per_node=1)
    if ray.most_replicas == ray.replicas:
        return deployment.options(num_replicas=ray.replicas).bind(own_settings, model)
    scaled = deployment.options(num_replicas=None, autoscaling_config=_autoscaling(ray))
    return scaled.bind(own_settings, model)


def engine_name(model: str) -> str:
    """Model's deployment, without `/` and `#`, which Ray does not allow."""
    return "engine-" + "".join(char if char.isalnum() or char in "-_." else "_" for char in model)


def _resources(ray: RayTable) -> dict[str, Any]:
    wanted: dict[str, Any] = {"num_cpus": ray.cpus}
    if ray.memory_gb is not None:
        wanted["memory"] = int(ray.memory_gb * _GIB)
    if ray.resources:
        wanted["resources"] = ray.resources
    return wanted


def _autoscaling(ray: RayTable) -> AutoscalingConfig:
    """Ray's own delays are off, because the policy waits before it decides."""
    kwargs = {
        "min_replicas": ray.replicas,
        "max_replicas": ray.most_replicas,
        "target_wait_ms": ray.target_wait_ms,
        "up_after_s": ray.up_after_s,
        "down_after_s": ray.down_after_s,
    }
    return AutoscalingConfig(
        min_replicas=ray.replicas,
        max_replicas=ray.most_replicas,
        metrics_interval_s=1.0,
        look_back_period_s=5.0,
        upscale_delay_s=0.0,
        downscale_delay_s=0.0,
        policy=AutoscalingPolicy(policy_function=_POLICY, policy_kwargs=kwargs),
    )


def print_config(settings: Settings, config: Path | None) -> str:
    """Return YAML for `serve run` and `serve deploy`. Raises StartupError as `portable`."""
    portable(settings)
    proxies = "proxy_location: Disabled  # API replicas listen on host and port of the TOML file"
    if settings.ray.ingress != "replicas":
        http = f"http_options:\n  host: {json.dumps(settings.host)}\n  port: {settings.port}"
        proxies = f"proxy_location: EveryNode\n{http}"
    args = {} if config is None else {"config": str(expanded_path(config).resolve())}
    return f"""# For `serve run FILE` and `serve deploy FILE`.
# [ray] of the TOML file says how many replicas there are. It must be at the same place on every
# node, as the model's file must.
{proxies}
applications:
- name: {json.dumps(settings.ray.name)}
  route_prefix: /
  import_path: openai_cpu_server.replicas.ray.application:build
  args: {json.dumps(args)}
"""


def run(settings: Settings) -> None:
    """Run in the cluster of the settings, or in a new one here. Raises StartupError."""
    app = serve_application(portable(settings))
    address = settings.ray.address  # None: Ray looks at RAY_ADDRESS
    export_settings(OF_NEW_CLUSTER)  # a cluster that runs does not look at them
    try:
        ray.init(address=address, include_dashboard=False if address is None else None, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise StartupError(f"cannot use the Ray cluster {address or 'here'}: {error}") from None
    _start(settings)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        serve.run(app, name=settings.ray.name, route_prefix="/", blocking=True)
    except RuntimeError as error:
        raise StartupError(
            f"Ray cannot run {settings.ray.name}: {_cause(settings.ray.name, str(error))}"
        ) from None


def _start(settings: Settings) -> None:
    has_proxies = settings.ray.ingress == "proxy"
    status = serve.status()
    if not (status.proxies if has_proxies else settings.ray.name in status.applications):
        with listening(settings.host, settings.port):
            pass  # replicas can too; else they would fail again and again in Ray's own log
    serve.start(
        proxy_location=ProxyLocation.EveryNode if has_proxies else ProxyLocation.Disabled,
        http_options=HTTPOptions(host=settings.host, port=settings.port),
    )


def _cause(name: str, message: str) -> str:
    app = serve.status().applications.get(name)
    messages = [one.message for one in app.deployments.values()] if app is not None else []
    lines = [line.strip() for text in (*messages, message) for line in text.splitlines()]
    own = [line.partition("StartupError: ")[2] for line in lines]
    return next(filter(None, [*own, message.partition("\n")[0]]), "it reports no reason")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End as with Ctrl-C: replicas drain, and a cluster of its own ends too."""
    raise KeyboardInterrupt
