"""Environment of a replica, without Ray. Ray assigns no CPU in particular, so each replica claims its own
with file locks; docs/ray.md has the savings by each variable."""

from __future__ import annotations

import fcntl
import os
import ssl
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from openai_cpu_server.config.folders import foreign_settings
from openai_cpu_server.storage.private_files import private_folder


class NoSuchReplica(Exception): ...


class ReplicaAddress(str):
    """Name of a replica, or "" for any, with `notify` for the running ones, in any thread. Calls carry it,
    because Ray's router gets only their arguments."""

    notify: Callable[[frozenset[str]], None]

    def __new__(cls, replica: str, notify: Callable[[frozenset[str]], None]) -> ReplicaAddress:
        made = super().__new__(cls, replica)
        made.notify = notify
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class CpuClaim:
    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / f"openai-cpu-server-cpus-{os.getuid()}"
        self._locks: dict[int, int] = {}

    def claim(self, num: int, usable: Iterable[int], nodes: Mapping[int, int]) -> tuple[int, ...]:
        """Claim free CPUs on few NUMA nodes, or return () if there are too few."""
        private_folder(self._folder)
        with (self._folder / "claiming.lock").open("w") as others:
            fcntl.flock(others, fcntl.LOCK_EX)  # one at a time: it takes a millisecond
            for cpu in usable:
                self._lock(cpu)
            chosen = choose_cpus(num, list(self._locks), nodes)
            for cpu in [cpu for cpu in self._locks if cpu not in chosen]:
                os.close(self._locks.pop(cpu))
        return chosen

    def release(self) -> None:
        while self._locks:
            os.close(self._locks.popitem()[1])

    def _lock(self, cpu: int) -> None:
        descriptor = os.open(self._folder / f"{cpu}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return
        self._locks[cpu] = descriptor


def choose_cpus(num: int, free: Iterable[int], nodes: Mapping[int, int]) -> tuple[int, ...]:
    by_node: dict[int, list[int]] = {}
    for cpu in sorted(free):
        by_node.setdefault(nodes.get(cpu, 0), []).append(cpu)
    enough = [cpus for cpus in by_node.values() if len(cpus) >= num]
    if enough:
        return tuple(min(enough, key=len)[:num])
    largest_first = [cpu for cpus in sorted(by_node.values(), key=len, reverse=True) for cpu in cpus]
    return tuple(largest_first[:num]) if len(largest_first) >= num else ()


OF_NEW_CLUSTER = {
    # So often Serve's controller looks at everything; its ten times a second take as much as all replicas
    # together. Replicas that are lost are noticed by their API replicas.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # Replicas have /metrics of their own, and Ray's would be on an unknown free port.
    "RAY_enable_metrics_collection": "0",
    # The log monitor sends drivers what workers print. Ours does not need that, and it cannot be left out;
    # it need not look for new files ten times a second.
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",
    "LOG_NAME_UPDATE_INTERVAL_S": "60",
}
_OF_REPLICAS = {
    # One event loop a process: a token that crosses threads costs two wake-ups more.
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    # Engines and API replicas are what the machine is for: Ray would let all else go first (nice 15).
    "RAY_worker_niceness": "0",
    # Ray's own metrics of calls, of which there are few.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "10000",
}


def of_replicas() -> dict[str, str]:
    environment = foreign_settings()
    return {name: environment.get(name, value) for name, value in _OF_REPLICAS.items()}


def server_tls(env: Mapping[str, str]) -> ssl.SSLContext | None:
    if not _is_on(env):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return _with_certificates(context, env)


def client_tls(env: Mapping[str, str]) -> ssl.SSLContext | None:
    if not _is_on(env):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # Ray's nodes are known by address; the authority is the cluster's own
    return _with_certificates(context, env)


def _is_on(env: Mapping[str, str]) -> bool:
    return env.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def _with_certificates(context: ssl.SSLContext, env: Mapping[str, str]) -> ssl.SSLContext:
    """Both sides show certificates. A missing one raises, but Ray could not have started without it."""
    context.load_cert_chain(env["RAY_TLS_SERVER_CERT"], env["RAY_TLS_SERVER_KEY"])
    if "RAY_TLS_CA_CERT" in env:
        context.load_verify_locations(env["RAY_TLS_CA_CERT"])
    context.verify_mode = ssl.CERT_REQUIRED
    return context
