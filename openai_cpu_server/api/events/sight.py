"""What a key may see of others: its own requests by name, and all others only as counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from openai_cpu_server.api.access.clients import Client
from openai_cpu_server.api.access.keys import Identity, Scope
from openai_cpu_server.api.events.objects import Holding, StepPart
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.shown import ShownHolding, ShownPart


class Sight:
    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    @property
    def is_whole(self) -> bool:
        """It is an administrator's."""
        return self._identity.may(Scope.ADMIN)

    @property
    def has_rates(self) -> bool:
        return self.is_whole or self._identity.may(Scope.METRICS)

    def has_model(self, names: Iterable[str]) -> bool:
        """Whether the model of these names exists for it, with or without an adapter."""
        allowed = self._identity.allowed_models
        if allowed is None:
            return True
        without_adapters = {name.rpartition(":")[0] for name in allowed}
        return any(name in allowed or name in without_adapters for name in names)

    def adapter(self, key: str | None, names: Iterable[str]) -> str | None:
        """The name of a step's adapter; None for one that does not exist for this key."""
        if key is None:
            return None
        name, allowed = key.partition("@")[0], self._identity.allowed_models
        is_known = self.is_whole or allowed is None or any(f"{model}:{name}" in allowed for model in names)
        return name if is_known else None

    def owns(self, client: str) -> bool:
        return Client.of_label(client).is_owned_by(self._identity)

    def name_of(self, client: str) -> str:
        return Client.of_label(client).shown_to(self._identity)

    def parts(self, shown: Sequence[ShownPart]) -> list[StepPart]:
        """Its own parts, and behind them all others as one for each priority."""
        own = [self._part(part) for part in shown if self.owns(part.client)]
        others = [_anonymous(part) for part in shown if not self.owns(part.client)]
        return [*own, *(summed(group) for group in _by_priority(others))]

    def holdings(self, shown: Sequence[ShownHolding]) -> list[Holding]:
        own = [
            Holding(id=one.id, priority=one.priority.label, runs=list(one.runs))
            for one in shown
            if self.owns(one.client)
        ]
        others = [one for one in shown if not self.owns(one.client)]
        for priority in Priority:
            of_it = [one for one in others if one.priority is priority]
            if of_it:
                own.append(Holding(priority=priority.label, runs=_united(of_it)))
        return own

    def _part(self, part: ShownPart) -> StepPart:
        return StepPart(
            id=part.id,
            client=self.name_of(part.client) or None,
            priority=part.priority.label,
            prompt=part.prompt,
            decode=part.decode,
            forced=part.forced,
            draft=part.draft,
            accepted=part.accepted,
            output=part.output,
            why=part.why or None,
        )


def _anonymous(part: ShownPart) -> StepPart:
    return StepPart(
        priority=part.priority.label,
        prompt=part.prompt,
        decode=part.decode,
        forced=part.forced,
        draft=part.draft,
        accepted=part.accepted,
        output=part.output,
    )


def summed(parts: Sequence[StepPart]) -> StepPart:
    """Several parts of one sequence in steps that follow one another, or of several without names."""
    first = parts[0]
    return StepPart(
        id=first.id,
        client=first.client,
        priority=first.priority,
        sequences=1 if first.id is not None else sum(part.sequences for part in parts),
        prompt=sum(part.prompt for part in parts),
        decode=sum(part.decode for part in parts),
        forced=sum(part.forced for part in parts),
        draft=sum(part.draft for part in parts),
        accepted=sum(part.accepted for part in parts),
        output=sum(part.output for part in parts),
        why=first.why,
    )


def _by_priority(parts: Sequence[StepPart]) -> Iterable[Sequence[StepPart]]:
    for priority in Priority:
        of_it = [part for part in parts if part.priority == priority.label]
        if of_it:
            yield of_it


def _united(holdings: Iterable[ShownHolding]) -> list[tuple[int, int]]:
    """All tiles that some of them hold."""
    tiles = {first + n for one in holdings for first, count in one.runs for n in range(count)}
    runs: list[tuple[int, int]] = []
    for tile in sorted(tiles):
        if runs and tile == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((tile, 1))
    return runs
