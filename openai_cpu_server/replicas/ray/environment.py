"""What Ray reads from its environment, where its defaults cost more than they bring here.

`scripts/ray_bench.py` shows what Ray's processes take while nothing is asked of them; docs/ray.md, what each
of these saves. Who sets one of them has his way.
"""

from __future__ import annotations

from openai_cpu_server.config.environment import foreign_settings

OF_NEW_CLUSTER = {
    # So often Serve's controller looks at everything; its ten times a second take as much as all replicas
    # together. Replicas that are lost are noticed by those who talk to them.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # Replicas have /metrics of their own, and nobody knows the free port that Ray's would be on.
    "RAY_enable_metrics_collection": "0",
    # The log monitor tells drivers what workers print. Ours does not want to know, and it cannot be left out;
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
    """In any cluster."""
    told = foreign_settings()
    return {name: told.get(name, value) for name, value in _OF_REPLICAS.items()}
