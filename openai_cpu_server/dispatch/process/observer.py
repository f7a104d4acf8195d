"""The protocol of those who are told how the engine is doing, and what its process died of."""

from __future__ import annotations

from typing import Protocol

from openai_cpu_server.contract.messages import StepFigures


class EngineObserver(Protocol):
    """Called in the event loop, so it must be quick."""

    def step_done(self, figures: StepFigures) -> None: ...

    def engine_died(self, cause: str) -> None:
        """It had served, and another is started unless it dies too often. `cause`: as `Death.cause`."""
        ...


class _Nobody:
    def step_done(self, figures: StepFigures) -> None:
        pass

    def engine_died(self, cause: str) -> None:
        pass


NOBODY: EngineObserver = _Nobody()
