"""Driver of an engine's core over a real or fake backend, which collects the core's messages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from openai_cpu_server.contract.messages import (
    ALONE,
    EngineOptions,
    Finish,
    QueueState,
    Sharing,
    StepDone,
    StepFigures,
    StepStarted,
    Submit,
    TokenEvent,
)
from openai_cpu_server.contract.model_info import CostCurve
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.engine.generating import EngineCore, build_core
from tests.fakes import FakeBackend

CURVE = CostCurve(step_ms=((1, 5.0), (256, 1000.0)), attended_ms=0.0)
OPTIONS = EngineOptions(model_path="", cache_bytes=64 * 100)


class Engine:
    def __init__(self, options: EngineOptions = OPTIONS, backend: Any = None) -> None:
        self.backend = backend or FakeBackend()
        is_real = not isinstance(self.backend, FakeBackend)
        curve, clock = (None, time.monotonic) if is_real else (CURVE, lambda: 0.0)
        self.core: EngineCore = build_core(options, self.backend, curve, clock=clock)
        self.options = options
        self.events: list[TokenEvent] = []
        self.started: list[tuple[str, ...]] = []
        self.queues: list[QueueState] = []
        self.all_figures: list[StepFigures] = []
        self.done = [StepDone(events=(), kv=None)]

    def step(self, sharing: Sharing = ALONE) -> None:
        for message in self.core.step(sharing):
            match message:
                case StepDone(events=events, figures=figures):
                    self.events += events
                    self.all_figures += [] if figures is None else [figures]
                    self.done.append(message)
                case StepStarted(ids=ids):
                    self.started.append(ids)
                case QueueState():
                    self.queues.append(message)
        self.core._scheduler.check()

    def run(self) -> None:
        while self.core.has_work:
            self.step()

    @property
    def last(self) -> StepDone:
        return self.done[-1]

    @property
    def figures(self) -> StepFigures:
        return self.last.figures

    def submit(self, *requests: GenerationRequest, output: Sequence[int] = ()) -> None:
        """`output`: tokens that an earlier engine has sent already."""
        for one in requests:
            self.core.handle(Submit(one, output=tuple(output)))

    def serve(self, *requests: GenerationRequest, output: Sequence[int] = ()) -> None:
        self.submit(*requests, output=output)
        self.run()

    def whole(self, name: str) -> TokenEvent:
        events = [event for event in self.events if event.id == name]
        return msgspec.structs.replace(
            events[-1] if events else TokenEvent(id=name),
            tokens=tuple(token for event in events for token in event.tokens),
            text="".join(event.text for event in events),
            logprobs=tuple(logprob for event in events for logprob in event.logprobs),
        )

    def tokens(self, name: str) -> list[int]:
        return list(self.whole(name).tokens)

    def finish(self, name: str = "a") -> Finish:
        (finish,) = [event.finish for event in self.events if event.id == name and event.finish]
        return finish
