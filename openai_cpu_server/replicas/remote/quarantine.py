"""Which requests replicas may be lost of, and where each of them is computed apart. Pure bookkeeping."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from openai_cpu_server.dispatch.requests.live import Live

_SUSPECT = 2
"""A request is a suspect when so many replicas in a row were lost while they computed it, and before it had
gained anything. One loss alone is mostly a machine's own: whatever it computed is replayed together."""
_GUILTY = 3
"""So many losses convict a request, if it was on trial at the last."""
_HOPELESS = 6
"""So many convict it even where others, of other API processes, were never away."""


class Quarantine:
    """Suspects are tried one at a time at a replica that gets nothing else new meanwhile. Who has gained
    something is cleared. If the replica is lost, that is of the suspect, unless another API process had a
    request there that had gained nothing either.

    So the innocent among them fail for nobody, and wait for as long as it takes to begin those before them.
    `dispatch.requests.trials` does this within one engine, by halves: there a death costs much less.
    """

    def __init__(self) -> None:
        self._losses: dict[str, int] = {}
        """By request."""
        self._trials: dict[str, Live] = {}
        """By replica: who is on trial there."""

    @property
    def replicas(self) -> Collection[str]:
        """They are to get nothing new."""
        return self._trials.keys()

    def has_room(self, num_ready: int) -> bool:
        """Another may be tried: half of the replicas that are ready, or the only one, may be taken for it."""
        return len(self._trials) < max(1, num_ready // 2)

    def suspects(self, live: Live) -> bool:
        """It is to be tried before it is computed beside others."""
        return self._losses.get(live.request.id, 0) >= _SUSPECT

    def begin(self, live: Live, replica: str) -> None:
        self._trials[replica] = live

    def left(self, live: Live) -> bool:
        """It is not where it was any more; whether that was a trial."""
        at = [replica for replica, one in self._trials.items() if one is live]
        for replica in at:
            del self._trials[replica]
        return bool(at)

    def cleared(self, live: Live) -> bool:
        """It has gained something, or has ended; whether a trial is over by that."""
        self._losses.pop(live.request.id, None)
        return self.left(live)

    def lost(self, replica: str, accused: Iterable[Live], *, is_alone: bool) -> Live | None:
        """The replica was lost while it computed the `accused`, which had gained nothing there. `is_alone`:
        no other API process had such requests there. Returns who is guilty; that explains all losses."""
        on_trial = self._trials.pop(replica, None)
        guilty = None
        for live in accused:
            losses = self._losses[live.request.id] = self._losses.get(live.request.id, 0) + 1
            is_convicted = live is on_trial and is_alone and losses >= _GUILTY
            guilty = live if is_convicted or losses >= _HOPELESS else guilty
        if guilty is not None:
            self._losses.clear()
        return guilty
