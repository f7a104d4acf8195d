"""Who is told how the engine is doing, and what its process died of."""

from __future__ import annotations

import signal
from typing import Protocol

from openai_cpu_server.contract.messages import StepFigures


class EngineWatch(Protocol):
    """Called in the event loop, so it must be quick."""

    def step_done(self, figures: StepFigures) -> None: ...

    def engine_died(self, cause: str) -> None:
        """It had served, and another is started unless it dies too often. `cause`: as `death_cause` says."""
        ...


class _Nobody:
    def step_done(self, figures: StepFigures) -> None:
        pass

    def engine_died(self, cause: str) -> None:
        pass


NOBODY: EngineWatch = _Nobody()


def death_cause(exit_status: int | None) -> str:
    """One of few words: the signal's name, `exit_1` and the like, `unknown`."""
    if exit_status is None:
        return "unknown"
    if exit_status >= 0:
        return f"exit_{exit_status}"
    try:
        return signal.Signals(-exit_status).name
    except ValueError:  # real-time signals have no name
        return f"signal_{-exit_status}"
