"""Requests to embed that have inputs left, and which inputs the next step computes. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.request import Priority

Key = TypeVar("Key", bound=Hashable)


class FairTurns(Generic[Key]):
    """Whose turn it is: who has been given the fewest tokens since the others came. Ties go to the oldest."""

    def __init__(self) -> None:
        self._given: dict[Key, int] = {}

    def join(self, key: Key) -> None:
        """A newcomer starts even with who has been given least: it catches up on nothing."""
        if key not in self._given:
            self._given[key] = min(self._given.values(), default=0)

    def leave(self, key: Key) -> None:
        del self._given[key]

    def give(self, key: Key, tokens: int) -> None:
        self._given[key] += tokens

    @property
    def order(self) -> list[Key]:
        return sorted(self._given, key=self._given.__getitem__)

    def ranking(self) -> Ranking[Key]:
        """A copy to try turns with."""
        return Ranking(self._given)

    def __bool__(self) -> bool:
        return bool(self._given)


class Ranking(Generic[Key]):
    """Keys by what they were given, least first."""

    def __init__(self, given: Mapping[Key, int]) -> None:
        self._heap = [(tokens, order, key) for order, (key, tokens) in enumerate(given.items())]
        heapq.heapify(self._heap)

    @property
    def first(self) -> Key:
        return self._heap[0][2]

    def give(self, tokens: int, *, stays: bool) -> None:
        """To the first, which leaves unless it `stays`."""
        given, order, key = self._heap[0]
        if stays:
            heapq.heapreplace(self._heap, (given + tokens, order, key))
        else:
            heapq.heappop(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)


@dataclass(eq=False)
class Pending:
    """A request with inputs that are not computed yet."""

    request: EmbedRequest
    next: int
    """The number of its first such input."""
    arrived_s: float
    has_run: bool = False
    """Some step has tried to compute inputs of it."""

    @property
    def num_left(self) -> int:
        return len(self.request.inputs) - self.next


@dataclass
class Part:
    """Consecutive inputs of one request, to be computed in a step."""

    pending: Pending
    first: int
    count: int = 0

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        return self.pending.request.inputs[self.first : self.first + self.count]

    @property
    def num_left(self) -> int:
        """Inputs behind the part."""
        return len(self.pending.request.inputs) - self.first - self.count

    @property
    def next_tokens(self) -> int:
        """Tokens of the input behind the part."""
        return len(self.pending.request.inputs[self.first + self.count])


_Path = tuple[Hashable, ...]
"""From the group to the client to the request."""


class _Turns:
    """Those who take turns, each of them alone, or those who share its turn."""

    def __init__(self) -> None:
        self._turns: FairTurns[Hashable] = FairTurns()
        self._below: dict[Hashable, _Turns] = {}

    def join(self, path: _Path) -> None:
        self._turns.join(path[0])
        if path[1:]:
            self._below.setdefault(path[0], _Turns()).join(path[1:])

    def leave(self, path: _Path) -> None:
        if path[1:]:
            self._below[path[0]].leave(path[1:])
            if self._below[path[0]]:
                return
            del self._below[path[0]]
        self._turns.leave(path[0])

    def give(self, path: _Path, tokens: int) -> None:
        self._turns.give(path[0], tokens)
        if path[1:]:
            self._below[path[0]].give(path[1:], tokens)

    @property
    def order(self) -> list[_Path]:
        """As they would be served if each had one small input."""
        queues = [
            [(key, *path) for path in self._below[key].order] if key in self._below else [(key,)]
            for key in self._turns.order
        ]
        ranks = range(max(map(len, queues), default=0))
        return [queue[rank] for rank in ranks for queue in queues if rank < len(queue)]

    def ranking(self) -> _Ranking:
        """A copy to try turns with."""
        return _Ranking(self._turns.ranking(), self._below)

    def __bool__(self) -> bool:
        return bool(self._turns)


class _Ranking:
    """Turns that are tried; what is below is copied when it is needed."""

    def __init__(self, ranking: Ranking[Hashable], below: Mapping[Hashable, _Turns]) -> None:
        self._ranking = ranking
        self._turns = below
        self._below: dict[Hashable, _Ranking] = {}

    @property
    def first(self) -> _Path:
        key = self._ranking.first
        return (key, *self._below_first.first) if key in self._turns else (key,)

    def give(self, tokens: int, *, stays: bool) -> None:
        """To the first, which leaves unless it `stays`."""
        if self._ranking.first in self._turns:
            below = self._below_first
            below.give(tokens, stays=stays)
            stays = bool(below)
        self._ranking.give(tokens, stays=stays)

    @property
    def _below_first(self) -> _Ranking:
        key = self._ranking.first
        if key not in self._below:
            self._below[key] = self._turns[key].ranking()
        return self._below[key]

    def __bool__(self) -> bool:
        return bool(self._ranking)


class _Lane:
    """The requests of one priority: groups of clients take turns, in a group its clients, and of a client its
    requests."""

    def __init__(self) -> None:
        self._turns = _Turns()

    def join(self, pending: Pending) -> None:
        self._turns.join(_path(pending))

    def leave(self, pending: Pending) -> None:
        self._turns.leave(_path(pending))

    def give(self, pending: Pending, tokens: int) -> None:
        self._turns.give(_path(pending), tokens)

    @property
    def order(self) -> Iterator[Pending]:
        """As they would be served if each had one small input."""
        return map(_pending, self._turns.order)

    def ranking(self) -> _Ranking:
        """A copy to try turns with."""
        return self._turns.ranking()

    def __bool__(self) -> bool:
        return bool(self._turns)


def _path(pending: Pending) -> _Path:
    return (*pending.request.turns, pending)


def _pending(path: _Path) -> Pending:
    assert isinstance(path[-1], Pending)
    return path[-1]


class Room(NamedTuple):
    """What a step may hold."""

    max_inputs: int
    max_tokens: int
    budget_tokens: int
    """The tokens that its time allows; a first input may have more, up to `max_tokens`."""


class EmbedQueue:
    """Owns the requests that have inputs left.

    Interactive inputs go first. Beside them batch work earns `batch_floor` of the tokens of each step, and
    its next input is computed first as soon as it has earned that many.
    """

    def __init__(self, *, batch_floor: float) -> None:
        self._batch_floor = batch_floor
        self._earned = 0.0
        """Tokens of batch work."""
        self._pending: dict[str, Pending] = {}
        self._lanes = {priority: _Lane() for priority in Priority}

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._pending)

    @property
    def best_priority(self) -> Priority | None:
        """None: nothing waits to be computed."""
        return next((priority for priority in Priority if self._lanes[priority]), None)

    @property
    def num_waiting(self) -> int:
        """Those of which nothing was computed yet."""
        return sum(not one.has_run for one in self._pending.values())

    @property
    def waiting(self) -> list[Pending]:
        """Those of which nothing was computed yet, about in the order in which they begin."""
        return [one for priority in Priority for one in self._lanes[priority].order if not one.has_run]

    def get(self, request_id: str) -> Pending | None:
        return self._pending.get(request_id)

    def add(self, request: EmbedRequest, num_embedded: int, now_s: float) -> None:
        pending = Pending(request, num_embedded, now_s)
        assert pending.num_left > 0, "nothing is left to embed"
        self._pending[request.id] = pending
        self._lanes[request.priority].join(pending)

    def remove(self, request_id: str) -> Pending | None:
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            self._lanes[pending.request.priority].leave(pending)
        return pending

    def compose(self, room: Room) -> list[Part]:
        """The parts of the next step, in which there is something if anything waits. Changes nothing."""
        step = _Composition(room)
        interactive, batch = self._lanes[Priority.INTERACTIVE], self._lanes[Priority.BATCH]
        if interactive and batch:
            step.add(batch, within=int(self._earned))
        step.add(interactive)
        step.add(batch)
        return list(step.parts.values())

    def computed(self, parts: list[Part]) -> None:
        """These inputs have their vectors; a request without further ones leaves."""
        self._account(parts)
        for part in parts:
            pending = part.pending
            self._lanes[pending.request.priority].give(pending, _num_tokens(part))
            pending.next = part.first + part.count
            if not pending.num_left:
                self.remove(pending.request.id)

    def _account(self, parts: list[Part]) -> None:
        if not all(self._lanes.values()):
            self._earned = 0.0  # credit is for work that waits beside interactive work
            return
        spent = sum(_num_tokens(part) for part in parts if part.pending.request.priority is Priority.BATCH)
        earned = self._batch_floor * sum(map(_num_tokens, parts))
        self._earned = max(0.0, self._earned + earned - spent)


class _Composition:
    """A step that is being filled."""

    def __init__(self, room: Room) -> None:
        self.parts: dict[Pending, Part] = {}
        self._room = room
        self._num_inputs = 0
        self._num_tokens = 0

    def add(self, lane: _Lane, within: int | None = None) -> None:
        """Add inputs of the lane in fair turns, as many as fit; `within`: of so many tokens at most."""
        left = self._room.max_tokens if within is None else within
        ranking = lane.ranking()
        while ranking:
            pending = _pending(ranking.first)
            part = self.parts.get(pending) or Part(pending, pending.next)
            if not part.num_left:  # an earlier call has added it all
                ranking.give(0, stays=False)
                continue
            tokens = part.next_tokens
            if tokens > left or not self._fits(tokens):
                return
            self._take(part, tokens)
            left -= tokens
            ranking.give(tokens, stays=part.num_left > 0)

    def _fits(self, tokens: int) -> bool:
        room = self._room
        if not self._num_inputs:
            return tokens <= room.max_tokens
        limit = min(room.budget_tokens, room.max_tokens)
        return self._num_inputs < room.max_inputs and self._num_tokens + tokens <= limit

    def _take(self, part: Part, tokens: int) -> None:
        self.parts[part.pending] = part
        part.count += 1
        self._num_inputs += 1
        self._num_tokens += tokens


def _num_tokens(part: Part) -> int:
    return sum(map(len, part.inputs))
