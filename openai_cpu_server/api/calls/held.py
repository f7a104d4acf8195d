"""Answers that are held until somebody has judged them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import NamedTuple

from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.errors import ServerError

_AT_ONCE = 32
"""After so many events others get their turn on the event loop."""


class Heard(NamedTuple):
    event: TokenEvent
    arrived_s: float


class Held:
    """A `Generation` that has ended, told once more."""

    def __init__(self, heard: Sequence[Heard], figures: Figures) -> None:
        self._heard = heard
        self._figures = figures
        self.arrived_s = 0.0

    @property
    def figures(self) -> Figures:
        return self._figures

    async def __aenter__(self) -> Held:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing runs any more."""

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        for number, (event, arrived_s) in enumerate(self._heard, 1):
            self.arrived_s = arrived_s
            yield event
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def progress(self) -> AsyncIterator[TokenEvent]:
        return self.__aiter__()

    def fail_in(self, seconds: float, error: ServerError) -> None:
        """It has ended by then."""
