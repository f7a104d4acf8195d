"""What every workload is given: servers to start, how many rounds, how large."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from bench.asking import Ask
from bench.load import Clients
from bench.process_tree import TreeUse
from bench.prompts import random_tokens
from bench.servers import Server, ServerFailed, Variant, missing_options, ours, running

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_WARM_UP_ASKS = 2


class Bench:
    """One workload's run; `uses` collects what its servers took."""

    def __init__(
        self,
        *,
        model: Path,
        rounds: int,
        is_quick: bool,
        known_options: frozenset[str],
        say: Callable[[str], None],
    ) -> None:
        self.model = model
        self.rounds = rounds
        self.is_quick = is_quick
        self.say = say
        self.uses: list[tuple[str, TreeUse]] = []
        self._known_options = known_options

    @contextlib.contextmanager
    def server(self, variant: Variant, *options: str) -> Iterator[Server]:
        """Started fresh and warmed up. Raises ServerFailed, also for an option that the server has not."""
        spec = ours(variant, self.model, *options)
        missing = missing_options(spec, self._known_options)
        if missing:
            raise ServerFailed(f"this server has no {', '.join(missing)}, which '{spec.label}' needs")
        with running(spec, self.uses) as server:
            asyncio.run(_warm_up(server.port))
            yield server

    def interleaved(self, measures: Mapping[K, Callable[[int], T]]) -> dict[K, list[T]]:
        """A B A B ...: each measure once a round, so that a noisy machine hits all; lists by round."""
        found: dict[K, list[T]] = {key: [] for key in measures}
        for number in range(self.rounds):
            for key, measure in measures.items():
                self.say(f"round {number + 1} of {self.rounds}: {getattr(key, 'label', key)}")
                found[key].append(measure(number))
        return found


async def _warm_up(port: int) -> None:
    clients = Clients(port)
    asks = [Ask(prompt=random_tokens(32, "warm up", i), max_tokens=4) for i in range(_WARM_UP_ASKS)]
    await clients.closed_loop(asks, _WARM_UP_ASKS)
    clients.check()
