"""CPU time that the engine has spent for each client, until an API process is told."""

from __future__ import annotations

from openai_cpu_server.contract.messages import StepFigures


class Spending:
    """An `EngineObserver`. API processes keep one account of what keys use, so it does not matter which of
    them is told, only that no more than one is."""

    def __init__(self) -> None:
        self._spent_ms: dict[str, float] = {}

    def step_done(self, figures: StepFigures) -> None:
        self.add(figures.spent_ms)

    def engine_died(self, cause: str) -> None:
        """What it has spent is spent."""

    def add(self, spent_ms: dict[str, float]) -> None:
        """Also what was taken, and has reached nobody."""
        for client, added_ms in spent_ms.items():
            self._spent_ms[client] = self._spent_ms.get(client, 0.0) + added_ms

    def take(self) -> dict[str, float]:
        """By the label of the client, milliseconds since this was asked last."""
        spent_ms, self._spent_ms = self._spent_ms, {}
        return spent_ms
