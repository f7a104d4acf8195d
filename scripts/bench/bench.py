"""Environment of every workload."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bench.clients import LoadFailed
from bench.prompts import Prompts, RandomPrompts, random_tokens
from bench.results import Contest
from bench.servers import Contestant, Room, Server, ServerSpec, TreeUse, Variant, ours, running
from bench.traffic import BenchRequest, described

T = TypeVar("T")

_WARM_UP_REQUESTS = 2


@dataclass
class Bench:
    model: Path
    rounds: int
    is_quick: bool
    say: Callable[[str], None]
    peers: Sequence[Contestant] = ()
    keys: frozenset[str] | None = None
    """Contestants to measure, or None for all."""
    by_clock: bool = False
    """True for equal intervals of interactive requests instead of a Poisson process."""
    prompts: Prompts = field(default_factory=RandomPrompts)
    once: frozenset[str] = frozenset()
    """Contestants measured in the first round only."""
    uses: list[tuple[str, TreeUse]] = field(default_factory=list)
    """Memory and CPU time of the servers."""

    @contextlib.contextmanager
    def server(self, *options: str) -> Iterator[Server]:
        """Start and warm up our server. Raises ServerFailed."""
        with self._running(ours(Variant.WHOLE, self.model, *options)) as server:
            yield server

    @contextlib.contextmanager
    def start(
        self,
        who: Contestant,
        room: Room,
        *own_options: str,
        changed: Callable[[ServerSpec], ServerSpec] = lambda spec: spec,
    ) -> Iterator[Server]:
        """Start and warm up a server. `own_options`: for ours only. Raises ServerFailed."""
        spec = changed(who.spec(self.model, room))
        with self._running(spec if who.is_peer else spec.with_options(*own_options)) as server:
            yield server

    @contextlib.contextmanager
    def _running(self, spec: ServerSpec) -> Iterator[Server]:
        with running(spec, self.uses) as server:
            clients = server.clients()
            requests = [
                BenchRequest(prompt=random_tokens(32, "warm up", i), max_tokens=4)
                for i in range(_WARM_UP_REQUESTS)
            ]
            asyncio.run(clients.closed_loop(requests, _WARM_UP_REQUESTS))
            clients.check()
            yield server

    def contestants(self, *variants: Variant) -> list[Contestant]:
        everybody = [*(variant.contestant for variant in variants), *self.peers]
        return [who for who in everybody if self.keys is None or who.key in self.keys]

    def contest(
        self, contestants: Sequence[Contestant], measure: Callable[[Contestant, int], T]
    ) -> Contest[T]:
        """Measure each contestant once a round, in turns; a failed one is left out. Raises LoadFailed if none
        is left."""
        contest: Contest[T] = Contest({who: [] for who in contestants})
        for number in range(self.rounds):
            for who in contestants:
                if who not in contest.runs or (number and who.key in self.once):
                    continue
                self.say(f"round {number + 1} of {self.rounds}: {who.label}")
                try:
                    contest.runs[who].append(measure(who, number))
                except Exception as error:
                    contest.failures[who.label] = described(error)
                    self.say(f"  failed: {contest.failures[who.label]}")
                    del contest.runs[who]
        if not contest.runs:
            raise LoadFailed("; ".join(contest.failures.values()) or "none of the servers takes part in this")
        return contest
