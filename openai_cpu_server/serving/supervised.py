"""The process of an engine, as the settings want it."""

from __future__ import annotations

import sys
from collections.abc import Collection

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.dispatch.cores.shared_cores import Partner
from openai_cpu_server.dispatch.process.hang_detector import HangLimits
from openai_cpu_server.dispatch.process.observer import EngineObserver
from openai_cpu_server.dispatch.process.supervisor import Supervisor
from openai_cpu_server.settings import Settings

_FRONT = "openai_cpu_server.kernels.front"
_PROCESS = "openai_cpu_server.engine.process"


def supervised(
    settings: Settings,
    options: EngineOptions,
    observer: EngineObserver,
    *,
    begins_asleep: bool,
    foretold: ModelInfo | None = None,
    partner: Partner | None = None,
    cpus: Collection[int] = (),
) -> Supervisor:
    """`cpus`: the engine computes on these only; (): on all that this process may use. The rest is as
    `Supervisor` wants it."""
    return Supervisor(
        (*_pinned(cpus), _PROCESS, settings.log_format),
        options,
        observer=observer,
        hang_limits=HangLimits(
            step_s=settings.hang_seconds or None, load_s=settings.load_hang_seconds or None
        ),
        max_crashes_a_minute=settings.max_crashes_per_minute,
        begins_asleep=begins_asleep,
        foretold=foretold,
        partner=partner,
    )


def _pinned(cpus: Collection[int]) -> tuple[str, ...]:
    """What runs a module of ours on these CPUs, with the kernels in front of ggml."""
    if not cpus:
        return (sys.executable, "-m", _FRONT)
    pin = f"import os, runpy; os.sched_setaffinity(0, {sorted(cpus)})"
    run = f"runpy.run_module({_FRONT!r}, run_name='__main__', alter_sys=True)"
    return (sys.executable, "-c", f"{pin}; {run}")
