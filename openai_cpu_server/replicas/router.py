"""Chooses the replica for each request, and keeps the books that this takes."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from openai_cpu_server.contract.prefix import BLOCK_TOKENS
from openai_cpu_server.contract.replica import Forecast
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.replicas.load import ReplicaLoad
from openai_cpu_server.replicas.pool import Pool
from openai_cpu_server.replicas.prefixes import PrefixIndex
from openai_cpu_server.replicas.report import Choice, ReplicaReport, ReplicaState, Wanted

_NUM_DRAWN = 2
"""Replicas that are drawn of each kind (those that hold the prefix, idle ones, any) and compared.

The better of two drawn ones is nearly as good as the best of all, and unlike that one it is not the same for
all routers at a time.
"""
_LINE_TOKENS = 24
"""Compared is when the first line of the answer is there: some words, each a step after the one before.

With the first token alone, sessions gather where their prefixes are until steps take twice as long there.
Measured with `scripts/simulate.py --part goal`, three seeds of 600 s, at full and at half load: the busiest
of four replicas computes up to 1.17 and 1.30 times the mean with 16, 1.12 and 1.30 with 24, 1.08 and 1.34
with 32; the hit rates are 0.970 to 0.990 of one replica's with all of them.
"""
_STALE_S = 5.0
"""A replica that was silent for so long is chosen only where no other is: it may be cut off."""
_UNKNOWN = Forecast(token_ms=1.0)
"""Before any replica has told what a token takes: then the one is chosen that has got the fewest."""


class Router:
    """Sends each request where its first token, and the first line behind it, are expected soonest: a prefix
    that is held saves the time of reading it, and who waits loses time. Batch work goes to replicas without
    interactive work, if there are any.

    One is for one model. Who uses it tells it of all that happens.
    """

    def __init__(self, random: Random, *, num_routers: int = 1) -> None:
        """`num_routers`: how many such routers send to the same replicas."""
        self._random = random
        self._num_routers = num_routers
        self._loads: dict[str, ReplicaLoad] = {}
        self._ready, self._idle = Pool(), Pool()
        self._index = PrefixIndex()
        self._places: dict[str, str] = {}
        """By request, its replica."""
        self._typical = _UNKNOWN
        """The last forecast that any replica has told, without its work: what is expected of a new one."""

    # -- what happens ------------------------------------------------------------------------------------

    def reported(self, replica: str, report: ReplicaReport, *, made_s: float, now_s: float) -> None:
        """A replica has told of itself at `now_s`. Its forecast has counted all that was sent before
        `made_s`."""
        if report.forecast is not None:
            self._typical = _without_work(report.forecast)
        load = self._loads.get(replica)
        if load is None:
            load = ReplicaLoad(report.state, self._typical, num_routers=self._num_routers)
            self._loads[replica] = load
        load.state, load.heard_s = report.state, now_s
        load.told(report.forecast or self._typical, made_s)
        if report.held is not None:
            self._index.told(replica, report.held)
        self._file(replica)

    def gone(self, replica: str) -> None:
        """The replica does not exist any more."""
        self._index.forget(replica)
        self._loads.pop(replica, None)
        self._ready.discard(replica)
        self._idle.discard(replica)

    def sent(self, wanted: Wanted, choice: Choice, now_s: float) -> None:
        """The request was sent to the replica that was chosen."""
        self.ended(wanted.id)
        load = self._loads.get(choice.replica)
        if load is None:
            return
        reading_ms = load.forecast.reading_ms(choice.cached_tokens, wanted.num_tokens)
        load.sent(wanted.id, wanted.priority, reading_ms, now_s)
        self._places[wanted.id] = choice.replica
        self._index.sent(choice.replica, wanted.blocks, now_s)
        self._file(choice.replica)

    def began(self, name: str) -> None:
        """The request's first token has come."""
        load = self._loads.get(self._places.get(name, ""))
        if load is not None:
            load.began(name)

    def ended(self, name: str) -> None:
        """The request is over, or was lost with its replica."""
        replica = self._places.pop(name, "")
        load = self._loads.get(replica)
        if load is not None:
            load.ended(name)
            self._file(replica)

    # -- what is asked -----------------------------------------------------------------------------------

    def choose(self, wanted: Wanted, *, now_s: float, among: Collection[str] | None = None) -> Choice | None:
        """The replica for a request, of those `among` (None: of all); None: no such one is ready.

        It books nothing: `sent` does.
        """
        if wanted.prefers is not None and self._may_stay(wanted.prefers, among):
            return self._choice(wanted, wanted.prefers, now_s)
        ready = self._ready if among is None else Pool(name for name in among if name in self._ready)
        drawn = self._drawn(wanted, ready) or ready.draw(self._random, _NUM_DRAWN)
        return min(
            (self._choice(wanted, name, now_s) for name in drawn),
            key=lambda choice: self._rank(choice, wanted, now_s),
            default=None,
        )

    def _drawn(self, wanted: Wanted, ready: Pool) -> list[str]:
        """The replicas that are compared: some that hold most of the prompt, and some others."""
        holders = [name for name in self._index.deepest(wanted.blocks) if name in ready]
        drawn = Pool(holders).draw(self._random, _NUM_DRAWN) + ready.draw(self._random, _NUM_DRAWN)
        if wanted.priority is Priority.BATCH:
            drawn += [name for name in self._idle.draw(self._random, _NUM_DRAWN) if name in ready]
        return [name for name in dict.fromkeys(drawn) if name not in wanted.avoids]

    def _rank(self, choice: Choice, wanted: Wanted, now_s: float) -> tuple[bool, bool, float]:
        """The least is the best."""
        load = self._loads[choice.replica]
        is_stale = now_s - load.heard_s > _STALE_S
        is_crowded = wanted.priority is Priority.BATCH and choice.replica not in self._idle
        return is_stale, is_crowded, choice.expected_ms + _LINE_TOKENS * load.step_ms

    def _choice(self, wanted: Wanted, replica: str, now_s: float) -> Choice:
        load = self._loads[replica]
        num_held = BLOCK_TOKENS * self._index.num_held(replica, wanted.blocks, now_s)
        cached = min(num_held, max(0, wanted.num_tokens - 1))
        reading_ms = load.forecast.reading_ms(cached, wanted.num_tokens)
        return Choice(replica, cached, load.wait_ms(wanted.priority, now_s) + reading_ms)

    def _may_stay(self, replica: str, among: Collection[str] | None) -> bool:
        load = self._loads.get(replica)
        is_alive = load is not None and load.state in (ReplicaState.READY, ReplicaState.RESTARTING)
        return is_alive and (among is None or replica in among)

    def _file(self, replica: str) -> None:
        """Note among whom it is to be drawn."""
        load = self._loads[replica]
        is_ready = load.state is ReplicaState.READY
        (self._ready.add if is_ready else self._ready.discard)(replica)
        (self._idle.add if is_ready and not load.has_interactive else self._idle.discard)(replica)


def _without_work(forecast: Forecast) -> Forecast:
    return Forecast(
        token_ms=forecast.token_ms, attended_ms=forecast.attended_ms, stream_ms=forecast.stream_ms
    )
