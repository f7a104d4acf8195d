"""Servers that can be killed with their engines at any moment."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bench.servers
import httpx
import psutil
from bench.servers import OUR_COMMAND, ServerSpec, environment

_READER = "openai_cpu_server.reader.process"
_DEATHS = re.compile(r'^ocs_engine_restarts_total\{cause="(\w+)"\} (\S+)$', re.MULTILINE)


class _KillableServer(bench.servers.Server):
    def __init__(self, spec: ServerSpec, log: Path) -> None:
        self._killed: set[psutil.Process] = set()
        self._log = log.open("w")
        super().__init__(spec, self._log.write)

    def __enter__(self) -> Any:
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._log.close()

    @property
    def kills(self) -> int:
        return len(self._killed)

    def _kill_one_of(self, processes: Sequence[psutil.Process]) -> bool:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                self._killed.add(process)
                return True
        return False


class Server(_KillableServer):
    """`openai-cpu-server serve` with models `NAME=SPEC`."""

    def __init__(self, models: Sequence[str], log: Path, *options: str) -> None:
        named = [part for model in models for part in ("--model", model)]
        steady = ("--port", "{port}", "--calibrate", "never", "--drain-seconds", "0")
        super().__init__(ServerSpec("ours", (*OUR_COMMAND, *named, *steady, *options), ready="/ready"), log)

    def engines(self) -> list[psutil.Process]:
        return self._children(readers=False)

    def kill_engine(self) -> bool:
        return self._kill_one_of(self.engines())

    def kill_reader(self) -> bool:
        return self._kill_one_of(self._children(readers=True))

    def kill_all(self) -> None:
        engines = self.engines()
        self.process.kill()
        self.process.wait()
        self._kill_one_of(engines)

    def rss_mib(self) -> float:
        """Return the HTTP process's memory; an engine's is new after every kill."""
        return float(psutil.Process(self.pid).memory_info().rss) / 2**20

    def deaths(self) -> Counter[str]:
        """Return deaths by cause, which count once the last engine has been replaced."""
        while not self.engines() and self.process.poll() is None:
            time.sleep(0.05)
        self.wait_until_ready()
        page = httpx.get(self.url + "/metrics", timeout=30).text
        return Counter({cause: int(float(count)) for cause, count in _DEATHS.findall(page)})

    def _children(self, *, readers: bool) -> list[psutil.Process]:
        living = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in set(psutil.Process(self.pid).children()) - self._killed:
                with contextlib.suppress(psutil.NoSuchProcess):
                    is_reader = _READER in child.cmdline()
                    if is_reader is readers and child.status() != psutil.STATUS_ZOMBIE:
                        living.append(child)
        return living


_START_S = 180
_STOP_S = 60
_IN_A_ROW = 8
_REDEPLOY = str(Path(__file__).with_name("redeploy.py"))
_ENGINE, _API = "engine-", ":api"


class RayServer(_KillableServer):
    """`openai-cpu-server ray` with its own cluster. `kill_engine` kills a replica, engine process and Ray
    actor."""

    def __init__(
        self, model: Path, log: Path, *options: str, replicas: int = 2, api_replicas: int = 1, cpus: float = 1
    ) -> None:
        self.model = model
        self._config = log.with_suffix(".toml")
        self._table = {"api_replicas": api_replicas, "cpus": cpus}
        self._replicas = replicas
        self._configure(replicas)
        named = ("--port", "{port}", "--calibrate", "never", "--model", f"chaos={model}", *options)
        command = (sys.executable, "-m", "openai_cpu_server", "ray", str(self._config), *named)
        quiet = {"RAY_USAGE_STATS_ENABLED": "0"}
        super().__init__(ServerSpec("ray", command, ready="/ready", variables=quiet), log)
        self._options = [part.replace("{port}", str(self.port)) for part in named]

    def wait_until_ready(self) -> float:
        """Wait until enough requests in a row succeed, because any may reach another API replica."""
        took_s, in_a_row = super().wait_until_ready(), 0
        while in_a_row < _IN_A_ROW * (self._table["api_replicas"] - 1):
            is_ready = httpx.get(self.url + "/ready", timeout=30).status_code == 200
            in_a_row = in_a_row + 1 if is_ready else 0
        return took_s

    def stop(self) -> None:
        family = self._family()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=_STOP_S)
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        super().stop()

    def replicas(self, kind: str = _ENGINE) -> list[psutil.Process]:
        found = []
        for one in self._family():
            with contextlib.suppress(psutil.Error):
                title = "".join(one.cmdline()[:1])
                if title.startswith("ray::ServeReplica:") and kind in title and one not in self._killed:
                    found.append((one.create_time(), one.pid, one))
        return [one for _, _, one in sorted(found)]

    def kill_engine(self) -> bool:
        """Kill the oldest engine replica. Return False if there are fewer than two."""
        replicas = self.replicas()
        if len(replicas) < min(2, self._replicas):
            return False
        children = replicas[0].children()
        self._kill_one_of(replicas[:1])
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        return True

    def kill_api(self) -> bool:
        return self._kill_one_of(self.replicas(_API))

    def redeploy(self, *, replicas: int) -> None:
        """Wait until Ray has begun with this number of engine replicas."""
        self._configure(replicas)
        command = [sys.executable, _REDEPLOY, f"--config={self._config}", *self._options]
        subprocess.run(command, check=True, capture_output=True, env=environment())
        self._replicas = replicas

    def wait_for_replicas(self, num: int) -> None:
        deadline = time.monotonic() + _START_S
        while len(self.replicas()) != num:
            if time.monotonic() > deadline:
                raise RuntimeError(f"there are {len(self.replicas())} engine replicas")
            time.sleep(0.2)

    def rss_mib(self) -> float:
        return sum(one.memory_info().rss for one in self.replicas(_API)) / 2**20

    def deaths(self) -> Counter[str]:
        self.wait_until_ready()
        health = httpx.get(self.url + "/health", timeout=30).json()
        return Counter({"replica_lost": int(health["restarts"])})

    def _configure(self, replicas: int) -> None:
        table = self._table | {"replicas": replicas, "api_cpus": 0, "health_s": 1.0, "lease_s": 4.0}
        self._config.write_text("[ray]\n" + "".join(f"{name} = {value}\n" for name, value in table.items()))

    def _family(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []
