"""What an engine process tells: kept as long as it is so, and passed on to those whom it concerns."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from openai_cpu_server.contract.adapter import Adapter
from openai_cpu_server.contract.engine import SeeStep
from openai_cpu_server.contract.messages import (
    AdapterLoaded,
    AdapterRefused,
    EngineOptions,
    Event,
    HideSteps,
    KVStats,
    Loading,
    LoadingAdapter,
    Ready,
    ShowSteps,
    StartFailed,
    StepDone,
    TurnBack,
    Wants,
)
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.replica import Forecast
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.dispatch.adapters.desk import AdapterDesk
from openai_cpu_server.dispatch.cores.shared_cores import Partner
from openai_cpu_server.dispatch.process.clientele import Clientele
from openai_cpu_server.dispatch.process.held_blocks import HeldBlocks
from openai_cpu_server.dispatch.process.observer import EngineObserver
from openai_cpu_server.dispatch.process.start import Start


class EngineNews:
    """Of one engine, whose processes come one after the other. The `Supervisor` tells it what the present one
    says; the engine's client looks at what is kept."""

    def __init__(
        self,
        options: EngineOptions,
        *,
        observer: EngineObserver,
        foretold: ModelInfo | None,
        partner: Partner | None,
    ) -> None:
        """`foretold` and `partner` as the `Supervisor`'s."""
        self.adapters = AdapterDesk(options.adapters)
        self.progress = Start(options.model_path)
        self.kv_stats: KVStats | None = None
        """As of the last step; None while the present process has not made any."""
        self.forecast: Forecast | None = None
        """What newcomers may expect, where the options ask for that; None before the first is told."""
        self.held_blocks = HeldBlocks()
        self.has_advanced = False
        """The present process has brought tokens or vectors."""
        self._model_path = options.model_path
        self._info = foretold
        self._observer = observer
        self._partner = partner
        self._see: SeeStep | None = None
        """Who watches the steps; None: nobody does."""
        self._send: Callable[..., None] | None = None
        """To the process; None: none is ready."""

    @property
    def info(self) -> ModelInfo | None:
        """Facts about the model and the adapters that it now has; None until it was loaded."""
        if self._info is None:
            return None
        loaded = self.adapters.shelf.loaded
        return msgspec.structs.replace(self._info, adapters=loaded) if loaded else self._info

    # -- for the engine's client -------------------------------------------------------------------------

    def show_steps(self, see: SeeStep) -> None:
        """To be told of each step who was in it, of this process and of those after it."""
        self._see = see
        self._tell(ShowSteps())

    def hide_steps(self) -> None:
        self._see = None
        self._tell(HideSteps())

    def request_came(self, priority: Priority) -> None:
        """A process that loads is in more of a hurry where somebody waits for it."""
        if self._partner is not None:
            self._partner.request_came(priority)

    # -- for the supervisor ------------------------------------------------------------------------------

    def is_owed(self, clientele: Clientele) -> bool:
        """The process has something to do, for whomever."""
        is_awaited = self._partner is not None and self._partner.is_awaited
        return clientele.is_owed or self.adapters.is_owed or is_awaited

    @property
    def is_waiting(self) -> bool:
        """It has something to do, and may not: another engine computes."""
        return self._partner is not None and self._partner.is_waiting

    def loads_again(self) -> None:
        """The model is to be loaded from the beginning."""
        self.progress = Start(self._model_path)

    def next_process(self) -> tuple[Adapter, ...]:
        """Another one is to be started, and to load these adapters."""
        self.has_advanced = False
        return self.adapters.process_started()

    def started(self, send: Callable[..., None]) -> None:
        """The process runs, and loads."""
        if self._partner is not None:
            self._partner.enter(send)

    def ready(self, info: ModelInfo, clientele: Clientele, send: Callable[..., None]) -> None:
        """It can be sent commands until it is lost."""
        self._info, self._send = info, send
        self.adapters.ready(send)
        if self._see is not None:
            send(ShowSteps())
        clientele.ready(send)

    def heard(self, event: Event, clientele: Clientele) -> None:
        """All that does not change whether there is an engine."""
        match event:
            case Loading():
                if self.progress.heard(event):
                    clientele.tell_of_loading(self.progress.loaded)
            case LoadingAdapter() | AdapterLoaded() | AdapterRefused():
                self.adapters.heard(event)
            case StepDone():
                self._step_done(event)
                clientele.heard(event)
            case Wants() | TurnBack():
                assert self._partner is not None, "it was not told that it shares its cores"
                self._partner.heard(event, loads_for=clientele.best_priority)
            case Ready() | StartFailed():
                raise AssertionError("that is for the supervisor")
            case _:
                clientele.heard(event)

    def lost(self, clientele: Clientele) -> None:
        """The process hears nothing any more."""
        self._send = None
        if self._partner is not None:
            self._partner.leave()
        clientele.lost()
        self.adapters.lost()

    def forget(self) -> None:
        """The process is gone: what it has told of itself is not so any more."""
        self.kv_stats, self.forecast = None, None
        self.held_blocks.clear()

    def died(self, cause: str) -> None:
        """Another is to take its place, unless that happens too often."""
        self.forget()
        self._observer.engine_died(cause)

    def _tell(self, command: ShowSteps | HideSteps) -> None:
        if self._send is not None:
            self._send(command)

    def _step_done(self, step: StepDone) -> None:
        self.kv_stats = step.kv
        if step.forecast is not None:
            self.forecast = step.forecast
        if step.prefixes is not None:
            self.held_blocks.heard(step.prefixes)
        self.has_advanced = self.has_advanced or bool(step.events) or bool(step.embedded)
        if step.figures is not None:
            self._observer.step_done(step.figures)
        if step.shown is not None and self._see is not None:
            self._see(step.figures, step.shown)
