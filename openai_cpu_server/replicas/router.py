"""Choice of a replica."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.replica import BLOCK_TOKENS, Forecast, HeldUpdate
from openai_cpu_server.contract.request import Priority


class ReplicaReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Report for routers and the autoscaler."""

    state: EngineState
    """While it restarts, only requests that stay are sent."""
    forecast: Forecast | None = None
    """Unset before the first: another replica's speed is assumed, without work."""
    held: HeldUpdate | None = None
    """Changes since the last report, or None."""


@dataclass(frozen=True)
class RoutedRequest:
    id: str
    priority: Priority
    num_tokens: int
    """Prompt tokens, with existing output."""
    blocks: tuple[int, ...] = ()
    avoids: frozenset[str] = frozenset()
    """Replicas of last resort, because they were lost with this request."""


@dataclass(frozen=True)
class ReplicaChoice:
    replica: str
    cached_tokens: int
    expected_ms: float


class RandomSet:
    """Adding, discarding and drawing take constant time."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = list(dict.fromkeys(names))
        self._places = {name: place for place, name in enumerate(self._names)}

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def add(self, name: str) -> None:
        if name not in self._places:
            self._places[name] = len(self._names)
            self._names.append(name)

    def discard(self, name: str) -> None:
        place = self._places.pop(name, None)
        if place is None:
            return
        last = self._names.pop()
        if last != name:
            self._names[place] = last
            self._places[last] = place

    def draw(self, random: Random, num: int) -> list[str]:
        return random.sample(self._names, min(num, len(self._names)))


@dataclass(frozen=True)
class _Sent:
    priority: Priority
    sent_s: float
    reading_ms: float


@dataclass
class ReplicaLoad:
    state: EngineState
    forecast: Forecast
    made_s: float = 0.0
    """Requests from before are in the forecast."""
    last_report_s: float = 0.0
    num_routers: int = 1
    """Routers that send to it, each assumed to send as much."""
    _free_s: list[float] = field(default_factory=lambda: [0.0] * len(Priority))
    """Time at which a new prefill would begin, by priority."""
    _unread: dict[str, _Sent] = field(default_factory=dict)
    _live: dict[str, _Sent] = field(default_factory=dict)
    _num_came: int = 0
    """Own requests outside the forecast."""
    _num_left: int = 0
    """Own ended requests in the forecast."""

    @property
    def has_interactive(self) -> bool:
        return bool(self.forecast.num_live[Priority.INTERACTIVE]) or any(
            sent.priority is Priority.INTERACTIVE for sent in self._live.values()
        )

    @property
    def step_ms(self) -> float:
        num_new = self.num_routers * (self._num_came - self._num_left)
        return self.forecast.step_ms(int(sum(self.forecast.num_live)) + num_new)

    def reported(self, forecast: Forecast, made_s: float) -> None:
        if forecast != self.forecast:
            self._num_left = 0
        self.forecast, self.made_s = forecast, made_s
        self._num_came = sum(sent.sent_s > made_s for sent in self._live.values())
        self._unread = {name: sent for name, sent in self._unread.items() if sent.sent_s > made_s}
        self._free_s = [made_s + ms / 1000 for ms in forecast.wait_ms]
        for sent in self._unread.values():
            self._add(sent)

    def sent(self, name: str, priority: Priority, reading_ms: float, now_s: float) -> None:
        sent = _Sent(priority, now_s, self.num_routers * reading_ms)
        self._live[name] = self._unread[name] = sent
        self._num_came += 1
        self._add(sent)

    def began(self, name: str) -> None:
        self._unread.pop(name, None)

    def ended(self, name: str) -> None:
        self._unread.pop(name, None)
        sent = self._live.pop(name, None)
        if sent is not None and sent.sent_s > self.made_s:
            self._num_came -= 1
        elif sent is not None:
            self._num_left += 1

    def wait_ms(self, priority: Priority, now_s: float) -> float:
        return max(0.0, 1000 * (self._free_s[priority] - now_s))

    def _add(self, sent: _Sent) -> None:
        """Later requests wait for this prefill, but interactive ones do not wait for batch work."""
        for priority in Priority:
            if priority >= sent.priority:
                begin_s = max(self._free_s[priority], sent.sent_s)
                self._free_s[priority] = begin_s + sent.reading_ms / 1000


_GUESS_S = 60.0
"""Time for which a sent prompt is assumed held. Replicas report at its end, mostly in a minute."""
_REPORTED = float("inf")


class PrefixIndex:
    """Holders of each block, reported or guessed."""

    def __init__(self) -> None:
        self._holders: dict[int, dict[str, float]] = {}
        """Expiry of each replica's assumed possession, by block."""
        self._held: dict[str, set[int]] = {}
        """All blocks in `_holders`, by replica."""
        self._guesses: deque[tuple[float, str, Sequence[int]]] = deque()
        """Time, replica and blocks of each guess, oldest first."""

    def sent(self, replica: str, blocks: Sequence[int], now_s: float) -> None:
        while self._guesses and self._guesses[0][0] < now_s - _GUESS_S:
            # Forget a guess that neither a newer one nor a report confirms.
            _, holder, old = self._guesses.popleft()
            expired = [block for block in old if self._holders.get(block, {}).get(holder, _REPORTED) < now_s]
            self._drop(holder, expired)
        self._guesses.append((now_s, replica, blocks))
        held = self._held.setdefault(replica, set())
        for block in blocks:
            holders = self._holders.setdefault(block, {})
            holders[replica] = max(now_s + _GUESS_S, holders.get(replica, 0.0))
        held.update(blocks)

    def reported(self, replica: str, update: HeldUpdate) -> None:
        """Guesses that the report does not mention stay until they expire."""
        held = self._held.setdefault(replica, set())
        if update.is_whole:
            self._drop(replica, [block for block in held if self._holders[block][replica] == _REPORTED])
        self._drop(replica, update.dropped)
        for block in update.saved:
            self._holders.setdefault(block, {})[replica] = _REPORTED
        held.update(update.saved)

    def forget(self, replica: str) -> None:
        self._drop(replica, list(self._held.get(replica, ())))
        self._held.pop(replica, None)

    def num_held(self, replica: str, blocks: Sequence[int], now_s: float) -> int:
        """Return the number of leading blocks held. A holder of a block holds those before it."""

        def is_missing(block: int) -> bool:
            return self._holders.get(block, {}).get(replica, -math.inf) < now_s

        return bisect_left(blocks, True, key=is_missing)

    def deepest(self, blocks: Sequence[int]) -> list[str]:
        """Return holders of the longest known prefix. Expired guesses count; the caller checks `num_held`."""
        num_held = bisect_left(blocks, True, key=lambda block: block not in self._holders)
        return list(self._holders[blocks[num_held - 1]]) if num_held else []

    def _drop(self, replica: str, blocks: Sequence[int]) -> None:
        held = self._held.get(replica, set())
        for block in blocks:
            holders = self._holders.get(block, {})
            if holders.pop(replica, None) is not None:
                held.discard(block)
                if not holders:
                    del self._holders[block]


_NUM_DRAWN = 2
"""Replicas drawn of each kind and compared. The best of all would be the same for all routers."""
_LINE_TOKENS = 24
"""Tokens until which replicas are compared. By TTFT alone, sessions gather at their prefixes until steps take
twice as long; 16 to 32 hardly differ (`scripts/simulate.py --part goal`)."""
_STALE_S = 5.0
"""Silence that makes a replica the last resort, because it may be cut off."""
_UNKNOWN = Forecast(token_ms=1.0)
"""Assumed before the first forecast, so that the fewest requests decide."""


class ReplicaRouter:
    """Prefers the earliest expected first line, and for batch work replicas without interactive work. A
    router serves one model."""

    def __init__(self, random: Random, *, num_routers: int = 1) -> None:
        self._random = random
        self._num_routers = num_routers
        self._loads: dict[str, ReplicaLoad] = {}
        self._ready, self._idle = RandomSet(), RandomSet()
        self._index = PrefixIndex()
        self._places: dict[str, str] = {}
        self._typical = _UNKNOWN
        """Last forecast of any replica, without its work, assumed for a new one."""

    # -- events ------------------------------------------------------------------------------------------

    def reported(self, replica: str, report: ReplicaReport, *, made_s: float, now_s: float) -> None:
        """Record a report of `now_s`, whose forecast includes all requests before `made_s`."""
        if report.forecast is not None:
            self._typical = Forecast(
                token_ms=report.forecast.token_ms,
                attended_ms=report.forecast.attended_ms,
                stream_ms=report.forecast.stream_ms,
            )
        load = self._loads.get(replica)
        if load is None:
            load = ReplicaLoad(report.state, self._typical, num_routers=self._num_routers)
            self._loads[replica] = load
        load.state, load.last_report_s = report.state, now_s
        load.reported(report.forecast or self._typical, made_s)
        if report.held is not None:
            self._index.reported(replica, report.held)
        self._file(replica)

    def gone(self, replica: str) -> None:
        self._index.forget(replica)
        self._loads.pop(replica, None)
        self._ready.discard(replica)
        self._idle.discard(replica)

    def sent(self, wanted: RoutedRequest, choice: ReplicaChoice, now_s: float) -> None:
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
        load = self._loads.get(self._places.get(name, ""))
        if load is not None:
            load.began(name)

    def ended(self, name: str) -> None:
        replica = self._places.pop(name, "")
        load = self._loads.get(replica)
        if load is not None:
            load.ended(name)
            self._file(replica)

    # -- choice ------------------------------------------------------------------------------------------

    def choose(
        self, wanted: RoutedRequest, *, now_s: float, among: Collection[str] | None = None
    ) -> ReplicaChoice | None:
        """Return a replica, unbooked, or None if none is ready. `among`: candidates, or None for all."""
        ready = self._ready if among is None else RandomSet(name for name in among if name in self._ready)
        drawn = self._drawn(wanted, ready) or ready.draw(self._random, _NUM_DRAWN)
        return min(
            (self._choice(wanted, name, now_s) for name in drawn),
            key=lambda choice: self._rank(choice, wanted, now_s),
            default=None,
        )

    def _drawn(self, wanted: RoutedRequest, ready: RandomSet) -> list[str]:
        holders = [name for name in self._index.deepest(wanted.blocks) if name in ready]
        drawn = RandomSet(holders).draw(self._random, _NUM_DRAWN) + ready.draw(self._random, _NUM_DRAWN)
        if wanted.priority is Priority.BATCH:
            drawn += [name for name in self._idle.draw(self._random, _NUM_DRAWN) if name in ready]
        return [name for name in dict.fromkeys(drawn) if name not in wanted.avoids]

    def _rank(self, choice: ReplicaChoice, wanted: RoutedRequest, now_s: float) -> tuple[bool, bool, float]:
        load = self._loads[choice.replica]
        is_stale = now_s - load.last_report_s > _STALE_S
        is_crowded = wanted.priority is Priority.BATCH and choice.replica not in self._idle
        return is_stale, is_crowded, choice.expected_ms + _LINE_TOKENS * load.step_ms

    def _choice(self, wanted: RoutedRequest, replica: str, now_s: float) -> ReplicaChoice:
        load = self._loads[replica]
        num_held = BLOCK_TOKENS * self._index.num_held(replica, wanted.blocks, now_s)
        cached = min(num_held, max(0, wanted.num_tokens - 1))
        reading_ms = load.forecast.reading_ms(cached, wanted.num_tokens)
        return ReplicaChoice(replica, cached, load.wait_ms(wanted.priority, now_s) + reading_ms)

    def _file(self, replica: str) -> None:
        load = self._loads[replica]
        is_ready = load.state is EngineState.READY
        (self._ready.add if is_ready else self._ready.discard)(replica)
        (self._idle.add if is_ready and not load.has_interactive else self._idle.discard)(replica)
