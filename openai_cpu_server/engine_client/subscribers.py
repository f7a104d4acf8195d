"""Latest facts from an engine process, and forwarding of its events."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from openai_cpu_server.contract import messages
from openai_cpu_server.contract.engine import SeeStep
from openai_cpu_server.contract.media import MeasuredMedia, MediaShape, MediaSize, PictureSize
from openai_cpu_server.contract.model_info import Adapter, ModelInfo
from openai_cpu_server.contract.replica import Forecast, HeldUpdate, PrefixNews
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.adapters import AdapterControl, PendingResults
from openai_cpu_server.engine_client.deaths import Death
from openai_cpu_server.engine_client.replay import RequestReplay
from openai_cpu_server.engine_client.shared_cores import CoresPartner
from openai_cpu_server.errors import EngineUnavailable, InvalidRequest, ServerError

logger = logging.getLogger(__name__)


class EngineObserver(Protocol):
    """Observer in the event loop, which must be quick."""

    def step_done(self, figures: messages.StepFigures) -> None: ...

    def engine_died(self, cause: str) -> None:
        """`cause`: as `Death.cause`. Only processes that had served are reported."""


class _NoObserver:
    def step_done(self, figures: messages.StepFigures) -> None:
        pass

    def engine_died(self, cause: str) -> None:
        pass


NO_OBSERVER: EngineObserver = _NoObserver()


_REMEMBERED = 256
"""Changes, at most ten a second. A router with an older version gets the whole set."""


@dataclass(eq=False)
class CachedBlocks:
    _held: set[int] = field(default_factory=set)
    _changes: deque[PrefixNews] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _version: int = 0

    def handle(self, news: PrefixNews) -> None:
        self._held.difference_update(news.dropped)
        self._held.update(news.saved)
        self._changes.append(news)
        self._version += 1

    def clear(self) -> None:
        self._held.clear()
        self._changes.clear()
        self._version += 1

    def since(self, version: int | None) -> HeldUpdate:
        missed = self._version - version if version is not None else None
        if missed is None or not 0 <= missed <= len(self._changes):
            return HeldUpdate(version=self._version, is_whole=True, saved=tuple(self._held))
        news = list(self._changes)[len(self._changes) - missed :]
        last = dict[int, bool]()
        for one in news:
            last |= dict.fromkeys(one.dropped, False) | dict.fromkeys(one.saved, True)
        return HeldUpdate(
            version=self._version,
            saved=tuple(name for name, is_saved in last.items() if is_saved),
            dropped=tuple(name for name, is_saved in last.items() if not is_saved),
        )


@dataclass(eq=False)
class LoadProgress:
    model_path: str
    loaded: float = 0.0
    timed: float | None = None

    def handle(self, event: messages.Loading) -> bool:
        """Return True after another tenth of the model."""
        if event.phase is messages.LoadingPhase.COSTS:
            self.timed = event.fraction
            return False
        is_news = int(10 * event.fraction) > int(10 * self.loaded)
        if int(4 * event.fraction) > int(4 * self.loaded):
            logger.info("loading %s: %.0f %%", self.model_path, 100 * event.fraction)
        self.loaded = event.fraction
        return is_news

    def failure(self, death: Death) -> str:
        if self.timed is None:
            return f"the model could not be loaded: {death.message}"
        return f"{death.message} while it timed steps (--calibrate never leaves that out)"


_MOST_SIZES = 4096
_MOST_DEATHS = 2
"""Deaths while measuring a size before it is rejected."""


class MediaShapes:
    def __init__(self) -> None:
        self._measured: dict[MediaSize, MeasuredMedia] = {}
        self._pending = PendingResults[MediaSize, MeasuredMedia]()
        self._deaths: Counter[MediaSize] = Counter()
        self._send: Callable[..., None] | None = None

    @property
    def is_pending(self) -> bool:
        return bool(self._pending) and self._send is not None

    @property
    def is_awaited(self) -> bool:
        return bool(self._pending)

    async def of(self, sizes: Sequence[MediaSize]) -> tuple[MediaShape, ...]:
        """Return tokens and rows of media. Raises `InvalidRequest`, `EngineUnavailable`."""
        media = await self.measured(sizes)
        for one in media:
            if one.why_not:
                code = "invalid_image" if isinstance(one.size, PictureSize) else "invalid_audio"
                raise InvalidRequest(one.why_not, code=code)
        return tuple(one.shape for one in media)

    async def measured(self, sizes: Sequence[MediaSize]) -> list[MeasuredMedia]:
        present = self._measured.keys() | self._pending.keys()
        new = [size for size in dict.fromkeys(sizes) if size not in present]
        for size in new:
            self._pending.expect(size)
        if new and self._send is not None:
            self._send(messages.MeasureMedia(tuple(new)))
        return [await self._one(size) for size in sizes]

    def ready(self, send: Callable[..., None]) -> None:
        self._send = send
        self.ask_again(send)

    def ask_again(self, send: Callable[..., None]) -> None:
        if self._pending:
            send(messages.MeasureMedia(tuple(self._pending)))

    def handle(self, measured: Sequence[MeasuredMedia]) -> None:
        for one in measured:
            self._settle(one)

    def lost(self) -> None:
        if self._send is None:
            return
        self._send = None
        for size in list(self._pending):
            self._deaths[size] += 1
            if self._deaths[size] >= _MOST_DEATHS:
                self._settle(MeasuredMedia(size, why_not=f"The engine cannot take {size.words}."))

    def end(self, error: Callable[[], ServerError]) -> None:
        self._pending.end(error)

    async def _one(self, size: MediaSize) -> MeasuredMedia:
        if size in self._measured:
            return self._measured[size]
        if size not in self._pending:  # another has waited longer, and it is forgotten already
            raise EngineUnavailable("Too many pictures and sounds come at once.", 1)
        return await self._pending.result(size)

    def _settle(self, measured: MeasuredMedia) -> None:
        if len(self._measured) >= _MOST_SIZES:
            del self._measured[next(iter(self._measured))]
        self._measured[measured.size] = measured
        self._pending.settle(measured.size, measured)


class EngineNews:
    """Latest facts, across processes."""

    def __init__(
        self,
        options: messages.EngineOptions,
        *,
        observer: EngineObserver,
        foretold: ModelInfo | None,
        partner: CoresPartner | None,
    ) -> None:
        self.adapters = AdapterControl(options.adapters)
        self.shapes = MediaShapes()
        self.progress = LoadProgress(options.model_path)
        self.kv_stats: messages.KVStats | None = None
        self.drafting: tuple[messages.DraftingState, ...] = ()
        self.forecast: Forecast | None = None
        self.threads: int | None = None
        self.is_throttled = False
        self.held_blocks = CachedBlocks()
        self.has_advanced = False
        self._model_path = options.model_path
        self._info = foretold
        self._observer = observer
        self._partner = partner
        self._see: SeeStep | None = None
        self._send: Callable[..., None] | None = None

    @property
    def info(self) -> ModelInfo | None:
        if self._info is None:
            return None
        loaded = self.adapters.loaded
        return msgspec.structs.replace(self._info, adapters=loaded) if loaded else self._info

    # -- for the engine's client -------------------------------------------------------------------------

    def show_steps(self, see: SeeStep) -> None:
        self._see = see
        self._send_if_ready(messages.ShowSteps())

    def hide_steps(self) -> None:
        self._see = None
        self._send_if_ready(messages.HideSteps())

    def request_came(self, priority: Priority) -> None:
        if self._partner is not None:
            self._partner.request_came(priority)

    # -- for the supervisor ------------------------------------------------------------------------------

    def is_pending(self, replay: RequestReplay) -> bool:
        is_awaited = self._partner is not None and self._partner.is_awaited
        return replay.is_pending or self.adapters.is_pending or self.shapes.is_pending or is_awaited

    @property
    def is_waiting(self) -> bool:
        return self._partner is not None and self._partner.is_waiting

    def loads_again(self) -> None:
        self.progress = LoadProgress(self._model_path)

    def next_process(self) -> tuple[Adapter, ...]:
        self.has_advanced = False
        return self.adapters.process_started()

    def started(self, send: Callable[..., None]) -> None:
        if self._partner is not None:
            self._partner.enter(send)

    def ready(self, info: ModelInfo, replay: RequestReplay, send: Callable[..., None]) -> None:
        self._info, self._send = info, send
        self.adapters.ready(send)
        self.shapes.ready(send)
        if self._see is not None:
            send(messages.ShowSteps())
        replay.ready(send)

    def handle(self, event: messages.EngineEvent, replay: RequestReplay) -> None:
        match event:
            case messages.Loading():
                if self.progress.handle(event):
                    replay.report_loading(self.progress.loaded)
            case messages.LoadingAdapter() | messages.AdapterLoaded() | messages.AdapterRefused():
                self.adapters.handle(event)
            case messages.MediaMeasured(media=media):
                self.shapes.handle(media)
            case messages.StepDone():
                self._step_done(event)
                replay.handle(event)
            case messages.EngineWants() | messages.CpuTokenReturned():
                assert self._partner is not None, "turns are for engines that share cores"
                self._partner.handle(event, loads_for=replay.best_priority)
            case messages.Ready() | messages.StartFailed():
                raise AssertionError("that is for the supervisor")
            case _:
                replay.handle(event)

    def lost(self, replay: RequestReplay) -> None:
        self._send = None
        if self._partner is not None:
            self._partner.leave()
        replay.lost()
        self.adapters.lost()
        self.shapes.lost()

    def end(self, error: Callable[[], ServerError]) -> None:
        self.adapters.end(error)
        self.shapes.end(error)

    def forget(self) -> None:
        self.kv_stats, self.forecast, self.threads, self.drafting = None, None, None, ()
        self.is_throttled = False
        self.held_blocks.clear()

    def died(self, cause: str) -> None:
        self.forget()
        self._observer.engine_died(cause)

    def _send_if_ready(self, command: messages.ShowSteps | messages.HideSteps) -> None:
        if self._send is not None:
            self._send(command)

    def _step_done(self, step: messages.StepDone) -> None:
        self.kv_stats = step.kv
        if step.drafting is not None:
            self.drafting = step.drafting
        if step.forecast is not None:
            self.forecast = step.forecast
        if step.prefixes is not None:
            self.held_blocks.handle(step.prefixes)
        self.has_advanced = self.has_advanced or bool(step.events) or bool(step.embedded)
        if step.figures is not None:
            self.threads, self.is_throttled = step.figures.threads, step.figures.is_throttled
            self._observer.step_done(step.figures)
        if step.shown is not None and self._see is not None:
            self._see(step.figures, step.shown)
