"""What is known of one replica."""

from __future__ import annotations

from dataclasses import dataclass, field

from openai_cpu_server.contract.adapter import AdapterState
from openai_cpu_server.contract.engine import EngineState, RequestState
from openai_cpu_server.replicas.remote.attendance import Attendance
from openai_cpu_server.replicas.report import ReplicaReport, ReplicaState
from openai_cpu_server.replicas.wire import Report


@dataclass
class Known:
    """A replica that is there, or was told to go."""

    attendance: Attendance
    report: Report | None = None
    """None: it has told nothing yet."""
    is_going: bool = False
    """It is to get nothing new, and what it has moves as soon as another can take it."""
    adapters_asked: set[str] = field(default_factory=set)
    """The keys of those that it was asked to load, beside those that it has had from its start."""
    adapters_refused: set[str] = field(default_factory=set)
    """The keys of those of them that it cannot load."""
    adapters_seen: set[str] = field(default_factory=set)
    """The keys of all that it has ever told of."""

    @property
    def is_ready(self) -> bool:
        is_ready = self.report is not None and self.report.state is EngineState.READY
        return is_ready and not self.is_going

    @property
    def is_shared(self) -> bool:
        """By its last report it computes requests of other API processes that have gained nothing yet."""
        others = (self.report and self.report.others) or ()
        return any(
            one.state is RequestState.RUNNING and not one.output_tokens and not one.num_embedded
            for one in others
        )

    def has(self, key: str | None) -> bool:
        """It has the adapter; None: none is needed."""
        return key is None or AdapterState.READY in self._adapter_states(key)

    def may_have(self, key: str) -> bool:
        """It has the adapter, or is about to load it; one that has told nothing yet may have it."""
        is_asked = key in self.adapters_asked - self.adapters_refused
        is_known = self._adapter_states(key) - {AdapterState.FAILED}
        return self.report is None or is_asked or bool(is_known)

    def _adapter_states(self, key: str) -> set[AdapterState]:
        """At most one."""
        adapters = self.report.adapters if self.report is not None else ()
        return {status.state for status in adapters if status.adapter.key == key}


def for_router(report: Report) -> ReplicaReport:
    return ReplicaReport(state=ReplicaState.of(report.state), forecast=report.forecast, held=report.held)
