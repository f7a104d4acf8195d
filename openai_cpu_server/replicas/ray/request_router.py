"""Request router of engine replicas. Ray pickles this module by value, so it must import what it needs of
ours."""

from __future__ import annotations

import random
from collections.abc import Callable

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from openai_cpu_server.replicas.ray.surroundings import NoSuchReplica, ReplicaAddress


class EngineRequestRouter(RequestRouter):  # type: ignore[misc]  # its types are not looked at
    """Sends a call to the replica that it names, without Ray's controller."""

    _notify: Callable[[frozenset[str]], None] | None = None

    @property
    def supports_rejection_protocol(self) -> bool:
        """Engines queue excess requests, and API replicas bound the queue."""
        return False

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        to = pending_request.args[0] if pending_request is not None and pending_request.args else ""
        if isinstance(to, ReplicaAddress):
            self._notify = to.notify
            self._notify_all()
        wanted = [one for one in candidate_replicas if one.replica_id.unique_id == to]
        if wanted:
            return [wanted]
        if to and pending_request is not None and not pending_request.future.done():
            # Fail the call, because Ray would repeat it without a pause.
            pending_request.future.set_exception(NoSuchReplica(f"the replica {to} no longer runs"))
        return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._notify_all()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._notify_all()

    def _notify_all(self) -> None:
        if self._notify is not None:
            self._notify(frozenset(replica_id.unique_id for replica_id in self.curr_replicas))
