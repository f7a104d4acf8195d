"""What the engine can be doing, and the counts that tell how it is."""

from __future__ import annotations

import enum

import msgspec

_SOON_S = 1
_NEXT_SERVER_S = 10


class EngineState(enum.Enum):
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    """The process has died; a new one is loading. Requests are accepted and wait."""
    DRAINING = "draining"
    """The server is about to end: what was accepted goes on, nothing new is accepted."""
    FAILED = "failed"
    """It died too often; nothing is accepted."""
    STOPPED = "stopped"

    def may_become(self, other: EngineState) -> bool:
        return other in _MOVES[self]

    @property
    def retry_after_s(self) -> int:
        """For who is refused in this state: longer where it takes another server, not a little patience."""
        goes_on = self in (EngineState.LOADING, EngineState.READY, EngineState.RESTARTING)
        return _SOON_S if goes_on else _NEXT_SERVER_S


_MOVES: dict[EngineState, set[EngineState]] = {
    EngineState.LOADING: {EngineState.READY, EngineState.FAILED, EngineState.STOPPED},
    EngineState.READY: {EngineState.RESTARTING, EngineState.FAILED, EngineState.STOPPED},
    EngineState.RESTARTING: {EngineState.READY, EngineState.FAILED, EngineState.STOPPED},
    EngineState.FAILED: {EngineState.STOPPED},
    EngineState.STOPPED: set(),
}


class LastDeath(msgspec.Struct, frozen=True, kw_only=True):
    """Of an engine process; another has been or will be started, unless they died too often."""

    cause: str
    """As `Death.cause`."""
    message: str
    """A clause for people."""
    age_s: float


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot for health routes. Requests are counted by their priority's label."""

    state: EngineState
    reason: str | None
    running: dict[str, int]
    waiting: dict[str, int]
    kv_tokens: int
    kv_tokens_used: int
    restarts: int
    last_death: LastDeath | None
    rss_bytes: int
    """Resident memory of this process and the engine's, the mapped model file included."""


class Totals(msgspec.Struct):
    """Counted over the client's life."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
