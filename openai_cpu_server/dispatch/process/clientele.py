"""The protocol of the requests for which an engine is kept alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from openai_cpu_server.contract.messages import Handling, QueueState, StepDone, StepStarted
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.dispatch.death import Death, Search
from openai_cpu_server.errors import ServerError


class Clientele(Protocol):
    """The requests for which an engine is kept alive. All methods return at once."""

    @property
    def is_owed(self) -> bool:
        """The engine has some of them, and something to do."""
        ...

    @property
    def num_live(self) -> int: ...

    @property
    def best_priority(self) -> Priority | None:
        """The best priority of the requests that live; None: there are none."""
        ...

    def ready(self, send: Callable[..., None]) -> None:
        """An engine process is ready, and can be sent commands until it dies."""
        ...

    def lost(self) -> None:
        """The process hears nothing any more. `died` follows, if another is to take its place."""
        ...

    def heard(self, event: StepStarted | Handling | StepDone | QueueState) -> None: ...

    def tell_of_loading(self, fraction: float) -> None:
        """They wait for the model, of which this share is loaded."""
        ...

    def died(self, death: Death) -> Search:
        """What the death has done for the search for a culprit."""
        ...

    def has_explained(self) -> bool:
        """Whether the deaths before were those of requests that have left since, before it could be shown.
        Asked before `died`; then it is told no more."""
        ...

    def end(self, error: Callable[[], ServerError]) -> None:
        """No engine will serve them any more."""
        ...
