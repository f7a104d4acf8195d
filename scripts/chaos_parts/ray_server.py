"""A Serve application on this machine, whose replicas can be killed at any moment."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType

import httpx
import psutil

_START_S = 180
_REDEPLOY = """
import sys, ray
from ray import serve
from openai_cpu_server.replicas.ray.application import application, portable
from openai_cpu_server.config.parser import read_settings
ray.init(address="auto", log_to_driver=False)
settings = portable(read_settings(sys.argv[1:]))
serve.run(application(settings), name=settings.ray.name, route_prefix="/")
"""
_ENGINE, _API = "engine-", ":api"


class RayServer:
    """`openai-cpu-server ray` with a cluster of its own; its log goes to `log`.

    For a `Server`: `kill_engine` kills the whole replica, engine process and Ray actor.
    """

    def __init__(
        self, model: Path, log: Path, *options: str, replicas: int = 2, api_replicas: int = 1, cpus: float = 1
    ) -> None:
        self.port = free_port()
        self._config = log.with_suffix(".toml")
        self._given = {"api_replicas": api_replicas, "cpus": cpus}
        self._options = ["--port", str(self.port), "--calibrate", "never", "--model", f"chaos={model}"]
        self._options += options
        self._configure(replicas)
        command = [sys.executable, "-m", "openai_cpu_server", "ray", str(self._config), *self._options]
        self.log = log
        self.model = model
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log.open("w")
        self.process = subprocess.Popen(
            command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        )
        self._killed: set[psutil.Process] = set()
        self._replicas = replicas

    def __enter__(self) -> RayServer:
        self.wait_until_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        family = self._family()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=60)
        for one in [psutil.Process(self.process.pid)] if self.process.poll() is None else []:
            one.kill()
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self._log.close()

    @property
    def kills(self) -> int:
        """The number of replicas that were killed, once each."""
        return len(self._killed)

    def replicas(self, kind: str = _ENGINE) -> list[psutil.Process]:
        """The actors of a kind that live and were not killed."""
        found = []
        for one in self._family():
            with contextlib.suppress(psutil.Error):
                title = "".join(one.cmdline()[:1])
                if title.startswith("ray::ServeReplica:") and kind in title and one not in self._killed:
                    found.append(one)
        return found

    def kill_engine(self) -> bool:
        """Kill the older of the engine replicas; False if fewer than two are there to kill."""
        replicas = self.replicas()
        if len(replicas) < min(2, self._replicas):
            return False
        self.kill(min(replicas, key=lambda one: one.create_time()))
        return True

    def kill(self, replica: psutil.Process) -> None:
        children = replica.children()
        replica.kill()
        self._killed.add(replica)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def redeploy(self, *, replicas: int) -> None:
        """Want another number of engine replicas. Returns when Ray has begun with that."""
        self._configure(replicas)
        arguments = [f"--config={self._config}", *self._options]
        subprocess.run([sys.executable, "-c", _REDEPLOY, *arguments], check=True, capture_output=True)
        self._replicas = replicas

    def wait_for_replicas(self, num: int) -> None:
        deadline = time.monotonic() + _START_S
        while len(self.replicas()) != num:
            if time.monotonic() > deadline:
                raise RuntimeError(f"there are {len(self.replicas())} engine replicas")
            time.sleep(0.2)

    def kill_api(self) -> bool:
        replicas = self.replicas(_API)
        for one in replicas[:1]:
            one.kill()
            self._killed.add(one)
        return bool(replicas)

    def rss_mib(self) -> float:
        """The memory of the API replicas."""
        return sum(one.memory_info().rss for one in self.replicas(_API)) / 2**20

    def deaths(self) -> Counter[str]:
        """Replicas that were lost, as the API replica counts them."""
        self.wait_until_ready()
        health = httpx.get(self.url + "/health", timeout=30).json()
        return Counter({"replica_lost": int(health["restarts"])})

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(self.url + "/ready", timeout=5).status_code == 200:
                    return
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"the server does not become ready:\n{self.log.read_text()}")
            time.sleep(0.2)

    def _configure(self, replicas: int) -> None:
        given = self._given | {"replicas": replicas, "api_cpus": 0, "health_s": 1.0, "lease_s": 4.0}
        self._config.write_text("[ray]\n" + "".join(f"{name} = {value}\n" for name, value in given.items()))

    def _family(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
