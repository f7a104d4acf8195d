"""Environment of every workload: servers to start, number of rounds, and size."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from bench.asking import Ask
from bench.contest import Contest
from bench.contestants import Contestant, Room, Variant, ours
from bench.failures import described
from bench.load import LoadFailed
from bench.process_tree import TreeUse
from bench.prompts import Prompts, RandomPrompts, random_tokens
from bench.servers import Server, ServerSpec, running

T = TypeVar("T")

_WARM_UP_ASKS = 2


class Bench:
    """One workload's run. `uses` collects memory and CPU time of its servers."""

    def __init__(
        self,
        *,
        model: Path,
        rounds: int,
        is_quick: bool,
        say: Callable[[str], None],
        peers: Sequence[Contestant] = (),
        keys: frozenset[str] | None = None,
        by_clock: bool = False,
        prompts: Prompts | None = None,
        once: frozenset[str] = frozenset(),
    ) -> None:
        """`keys`: contestants to measure, or None for all; those in `once` are measured in the first round
        only. `prompts`: what users write, or None for random tokens. `by_clock`: interactive requests
        arrive at equal intervals, not as a Poisson process."""
        self.model = model
        self.rounds = rounds
        self.is_quick = is_quick
        self.by_clock = by_clock
        self.say = say
        self.prompts: Prompts = prompts or RandomPrompts()
        self.uses: list[tuple[str, TreeUse]] = []
        self._peers = peers
        self._keys = keys
        self._once = once

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
        """Start and warm up a server. `own_options`: for ours only; `changed`: changes for all. Raises
        ServerFailed."""
        spec = changed(who.spec(self.model, room))
        with self._running(spec if who.is_peer else spec.with_options(*own_options)) as server:
            yield server

    def start_unmeasured(self, who: Contestant, room: Room) -> None:
        """Start and stop a server, so that it has done the measurements of its first start."""
        with running(who.spec(self.model, room), []):
            pass

    @contextlib.contextmanager
    def _running(self, spec: ServerSpec) -> Iterator[Server]:
        with running(spec, self.uses) as server:
            asyncio.run(_warm_up(server))
            yield server

    def contestants(self, *variants: Variant) -> list[Contestant]:
        everybody = [*(variant.contestant for variant in variants), *self._peers]
        return [who for who in everybody if self._keys is None or who.key in self._keys]

    def contest(
        self,
        contestants: Sequence[Contestant],
        measure: Callable[[Contestant, int], T],
    ) -> Contest[T]:
        """Measure each contestant once a round, in turns. A contestant that fails is out, and the others
        go on. Raises LoadFailed if none is left."""
        contest: Contest[T] = Contest({who: [] for who in contestants})
        for number in range(self.rounds):
            for who in contestants:
                if who in contest.runs and not (number and who.key in self._once):
                    self._let_run(contest, who, measure, number)
        if not contest.runs:
            raise LoadFailed("; ".join(contest.failures.values()) or "none of the servers takes part in this")
        return contest

    def _let_run(
        self, contest: Contest[T], who: Contestant, measure: Callable[[Contestant, int], T], number: int
    ) -> None:
        self.say(f"round {number + 1} of {self.rounds}: {who.label}")
        try:
            contest.runs[who].append(measure(who, number))
        except Exception as error:
            contest.failures[who.label] = described(error)
            self.say(f"  failed: {contest.failures[who.label]}")
            del contest.runs[who]


async def _warm_up(server: Server) -> None:
    clients = server.clients()
    asks = [Ask(prompt=random_tokens(32, "warm up", i), max_tokens=4) for i in range(_WARM_UP_ASKS)]
    await clients.closed_loop(asks, _WARM_UP_ASKS)
    clients.check()
