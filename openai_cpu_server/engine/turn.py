"""Engine side of the turn to compute, where several engines share the cores."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from openai_cpu_server.contract.messages import ALONE, EngineWants, GrantTurn, Sharing, ShortenTurn, TurnBack
from openai_cpu_server.contract.request import Priority

PIECE_S = 0.05
"""Time of loading after which an engine lets others compute."""
_MEMORY_S = 5.0
"""Time constant of observations, in time in which this engine wanted to compute."""
_SLOWEST = 20.0
"""Maximum factor of estimates."""
_LOADING = EngineWants(work=Priority.BATCH, is_loading=True)


class EngineTurn:
    """Turn of an engine that shares its cores with no other: it always has the turn and sends nothing.

    All methods but those of `SharedTurn` for the reader belong to the thread that computes.
    """

    @property
    def is_held(self) -> bool:
        return True

    @property
    def is_wanted(self) -> bool:
        """True if another engine's turn is due. Any thread may read it."""
        return False

    @property
    def sharing(self) -> Sharing:
        return ALONE

    def settle(self, work: Priority | None) -> None:
        """Report the present work between two steps. Return the turn if there is nothing to compute or
        another engine's turn is due."""

    def computed(self) -> None: ...

    def give_back(self) -> None: ...

    def load_on(self) -> None:
        """Wait for the turn to load a piece, letting others compute first after a piece. Raises
        ConnectionError if the client is gone."""

    def pass_on(self) -> None:
        """Let others compute, and wait for the next turn. Raises ConnectionError if the client is gone."""


@dataclass(eq=False)
class SharedTurn(EngineTurn):
    """Turn of one of several engines. Every turn is for at least one step."""

    send: Callable[[EngineWants | TurnBack], None]
    _: KW_ONLY
    wake: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    _changed: threading.Condition = field(default_factory=threading.Condition)
    """Guards the fields up to `_is_closed`, which the reader thread also changes."""
    _is_held: bool = False
    _granted_s: float = 0.0
    _is_beside_interactive: bool = False
    _has_computed: bool = False
    """True if a step of this turn has ended or none is to begin."""
    _is_closed: bool = False
    _sent: EngineWants = field(default_factory=EngineWants)

    def __post_init__(self) -> None:
        self._until_s = math.inf
        self._slowness = _Slowness(self.clock())

    # -- for the reader ----------------------------------------------------------------------------------

    def granted(self, turn: GrantTurn) -> None:
        now_s = self.clock()
        with self._changed:
            self._is_held, self._has_computed = True, False
            self._granted_s = now_s
            self._until_s = math.inf if turn.limit_ms is None else now_s + turn.limit_ms / 1000
            self._is_beside_interactive = turn.beside_interactive
            self._changed.notify_all()
        self.wake()

    def recalled(self, recall: ShortenTurn) -> None:
        with self._changed:
            if self._is_held:
                self._until_s = self.clock() + recall.after_ms / 1000

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # -- for the thread that computes --------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        return self._is_held

    @property
    def is_wanted(self) -> bool:
        return self.clock() >= self._until_s

    @property
    def sharing(self) -> Sharing:
        return Sharing(self._is_beside_interactive, self._slowness.factor)

    def settle(self, work: Priority | None) -> None:
        self._note()
        if self._is_held and (work is None or (self.is_wanted and self._has_computed)):
            self._give_back(EngineWants(work=work))
        else:
            self._send_wants(EngineWants(work=work))

    def computed(self) -> None:
        self._has_computed = True

    def give_back(self) -> None:
        self.settle(None)

    def load_on(self) -> None:
        if not self._is_held:
            self._send_wants(_LOADING)
            self._wait()
        elif self.clock() - self._granted_s >= PIECE_S:
            self.pass_on()

    def pass_on(self) -> None:
        self._give_back(_LOADING)
        self._wait()

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_held or self._is_closed)
        if self._is_closed:
            raise ConnectionError("the client is gone")

    def _send_wants(self, wants: EngineWants) -> None:
        if wants != self._sent:
            self._sent = wants
            self.send(wants)

    def _give_back(self, wants: EngineWants) -> None:
        with self._changed:
            self._is_held, self._until_s = False, math.inf
        self._sent = wants
        self.send(TurnBack(wants=wants))

    def _note(self) -> None:
        wants = self._sent.work is not None
        if self._is_held:  # up to then it has waited
            self._slowness.note(self._granted_s, wants=wants, has=False)
        self._slowness.note(self.clock(), wants=wants, has=self._is_held)


class _Slowness:
    """Factor by which work takes longer because other engines compute, too."""

    def __init__(self, now_s: float) -> None:
        self._noted_s = now_s
        self._wanted_s = self._held_s = _MEMORY_S / 5

    def note(self, now_s: float, *, wants: bool, has: bool) -> None:
        """Record the state since the last note. A time before that is ignored."""
        seconds = max(0.0, now_s - self._noted_s)
        self._noted_s += seconds
        if wants:
            fading = math.exp(-seconds / _MEMORY_S)
            self._wanted_s = fading * self._wanted_s + seconds
            self._held_s = fading * self._held_s + (seconds if has else 0.0)

    @property
    def factor(self) -> float:
        return min(self._wanted_s / max(self._held_s, 1e-3), _SLOWEST)
