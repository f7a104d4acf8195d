"""Runs the Serve application until Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import ray
from ray import serve
from ray.serve.config import HTTPOptions, ProxyLocation

from openai_cpu_server.app import listening
from openai_cpu_server.config.environment import tell_others
from openai_cpu_server.errors import StartupError
from openai_cpu_server.replicas.ray.application import application, config_file, portable
from openai_cpu_server.replicas.ray.environment import OF_NEW_CLUSTER
from openai_cpu_server.settings import Settings


def run(settings: Settings) -> None:
    """In the cluster that the settings name, else in a new one on this machine. Raises StartupError."""
    app = application(portable(settings))
    address = settings.ray.address  # None: Ray looks at RAY_ADDRESS
    tell_others(OF_NEW_CLUSTER)  # a cluster that runs does not look at them
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
    """Serve, where it does not run already. Raises StartupError."""
    has_proxies = settings.ray.ingress == "proxy"
    status = serve.status()
    if not (status.proxies if has_proxies else settings.ray.name in status.applications):
        with listening(settings.host, settings.port):
            pass  # replicas can too; else they would fail again and again in Ray's own log
    serve.start(
        proxy_location=ProxyLocation.EveryNode if has_proxies else ProxyLocation.Disabled,
        http_options=HTTPOptions(host=settings.host, port=settings.port),
    )


def _cause(name: str, said: str) -> str:
    """One line of what Ray says: of the tracebacks of replicas that could not begin, our own error."""
    app = serve.status().applications.get(name)
    told = [one.message for one in app.deployments.values()] if app is not None else []
    lines = [line.strip() for text in (*told, said) for line in text.splitlines()]
    own = [line.partition("StartupError: ")[2] for line in lines]
    return next(filter(None, [*own, said.partition("\n")[0]]), "it does not say why")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """It ends as with Ctrl-C: replicas drain, and a cluster of its own ends with it."""
    raise KeyboardInterrupt


def print_config(settings: Settings, config: Path | None) -> str:
    portable(settings)
    return config_file(settings, config)
