"""An engine as whoever keeps models in memory sees it: its process can be ended, and started again."""

from __future__ import annotations

from collections.abc import Callable

from openai_cpu_server.contract.engine import EngineState, EngineStatus
from openai_cpu_server.dispatch.process.supervisor import Supervisor
from openai_cpu_server.dispatch.requests.replay import Replay


class Residency:
    """Of one model, in memory or out of it."""

    def __init__(self, supervisor: Supervisor, replay: Replay, status: Callable[[], EngineStatus]) -> None:
        self.status = status
        self._supervisor = supervisor
        self._replay = replay

    @property
    def process_state(self) -> EngineState:
        """The state, whether the server is about to end or not."""
        return self._supervisor.state

    @property
    def is_at_work(self) -> bool:
        """Its process has some requests."""
        return self._replay.is_owed

    @property
    def has_requests(self) -> bool:
        """Some live, in its process or waiting for one, or somebody waits for an adapter."""
        return self._replay.num_live > 0 or self._supervisor.news.adapters.is_awaited

    @property
    def last_use_s(self) -> float:
        """When a request last came or ended, or it became ready, on the clock."""
        return self._replay.last_use_s

    @property
    def failed_s(self) -> float | None:
        return self._supervisor.failed_s

    def wake(self) -> None:
        """Load the model. It must be asleep, or have failed."""
        self._supervisor.wake()

    async def settled(self) -> EngineState:
        """The state that loading leads to, once it is over."""
        return await self._supervisor.settled()

    async def sleep(self) -> None:
        """End the process, which must not be at work. Returns when it is gone; requests that come meanwhile
        wait for the next."""
        assert not self.is_at_work, "it has requests"
        self._replay.lost()
        await self._supervisor.sleep()

    def hold_back(self) -> None:
        """Send the process nothing new: it is to end what it has, and then to sleep."""
        self._replay.hold_back()

    def release(self) -> None:
        """Send it again what was held back."""
        self._replay.release()

    def fail(self, reason: str) -> None:
        """An engine that sleeps is not to be woken, for this reason."""
        self._supervisor.fail(reason)
