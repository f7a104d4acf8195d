"""The embedding engine's core on the fake embedder, step by step."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from openai_cpu_server.contract.embedding import Embedded, EmbedRequest, EmbedResult
from openai_cpu_server.contract.messages import (
    CancelRequest,
    ClearCache,
    EngineOptions,
    QueueState,
    Scheduling,
    Sharing,
    ShortenCpuToken,
    StepDone,
    StepStarted,
    Submit,
)
from openai_cpu_server.contract.offload import Device, DevicePlacement
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine.embedding import EmbedCore, build_embed_core
from openai_cpu_server.scheduler.cost_model import CostModel, ThreadCosts
from openai_cpu_server.scheduler.embed_queue import EmbedQueue
from tests.fakes import FAKE_EMBEDDER, FakeEmbedder, vector_of
from tests.scheduler.driver import request as generation

SIZE = FAKE_EMBEDDER.embedding_size
OPTIONS = Scheduling(stream_rate=1e-3, stall_ms=1e6, batch_stall_ms=1e6, preempt_threshold_ms=1e6)
"""Limits that leave steps as long as a core allows."""


def embed(name: str, *inputs: tuple[int, ...], priority: Priority = Priority.INTERACTIVE) -> EmbedRequest:
    return EmbedRequest(id=name, inputs=inputs, priority=priority)


class Driver:
    def __init__(self, backend: FakeEmbedder | None = None, options: Scheduling = OPTIONS) -> None:
        self.now = 0.0
        self.backend = backend or FakeEmbedder()
        self.core = EmbedCore(
            EmbedQueue(batch_floor=0.1),
            self.backend,
            ThreadCosts(CostModel.guess()),
            options,
            clock=lambda: self.now,
        )
        self.messages: list[StepStarted | StepDone | QueueState] = []

    def submit(self, *requests: EmbedRequest) -> None:
        for request in requests:
            self.core.handle(Submit(request=request))

    def step(self) -> tuple[Embedded, ...]:
        messages = list(self.core.step())
        self.messages += messages
        return next(message.embedded for message in messages if isinstance(message, StepDone))

    def run(self) -> list[Embedded]:
        events: list[Embedded] = []
        while self.core.has_work:
            events += self.step()
        return events


def rows(events: list[Embedded], name: str) -> list[list[float]]:
    values = array("f")
    for event in events:
        if event.id == name:
            assert event.error is None
            assert event.first == len(values) // SIZE
            values.frombytes(event.vectors)
    return [list(values[start : start + SIZE]) for start in range(0, len(values), SIZE)]


def test_every_input_gets_its_vector() -> None:
    driver, inputs = Driver(), [(5, 6, 7), (8,), (9, 9)]
    driver.submit(embed("a", *inputs), embed("b", (4, 2)))
    events = driver.run()
    assert rows(events, "a") == [vector_of(tokens, SIZE) for tokens in inputs]
    assert rows(events, "b") == [vector_of((4, 2), SIZE)]
    assert len(driver.backend.steps) == 1
    driver.submit(embed("hundred", *[(5,) * 8] * 100))
    assert len(rows(driver.run(), "hundred")) == 100
    assert len(driver.backend.steps) == 1 + 4  # 800 tokens, 256 in a step


@pytest.mark.parametrize(
    ("priority", "sharing"),
    [(Priority.INTERACTIVE, Sharing()), (Priority.BATCH, Sharing(beside_interactive=True))],
)
def test_a_step_is_as_long_as_its_time_budget_allows(priority: Priority, sharing: Sharing) -> None:
    driver = Driver(options=msgspec.structs.replace(OPTIONS, stall_ms=CostModel.guess().predict_ms(32)))
    driver.submit(embed("a", *[(5,) * 8] * 8, priority=priority))
    list(driver.core.step(sharing))
    assert sum(map(len, driver.backend.steps[0])) == 32


@pytest.mark.parametrize(("on_device", "tokens"), [(True, 32), (False, 64)])
def test_a_device_gets_short_batch_steps_as_it_cannot_be_interrupted(on_device: bool, tokens: int) -> None:
    gpu = Device(name="GPU0", backend="Some", description="", kind="gpu", free_bytes=9000, total_bytes=9000)
    there = msgspec.structs.replace(
        DevicePlacement.nowhere("", gpu), layers=9, num_layers=9, weights_bytes=1000
    )
    assert there.split == "9 of 9 layers on GPU0"
    backend = FakeEmbedder(msgspec.structs.replace(FAKE_EMBEDDER, placement=there if on_device else None))
    threshold_ms = CostModel.guess(FAKE_EMBEDDER.num_parameters).predict_ms(32)
    scheduling = Scheduling(batch_stall_ms=1e6, preempt_threshold_ms=threshold_ms)
    core = build_embed_core(EngineOptions(model_path="", scheduling=scheduling), backend)
    core.handle(Submit(request=embed("a", *[(5,) * 8] * 8, priority=Priority.BATCH)))
    list(core.step())
    assert sum(map(len, backend.steps[0])) == tokens


def test_inputs_of_a_step_that_fails_are_computed_one_by_one() -> None:
    driver = Driver(FakeEmbedder(fail_on=13))
    driver.submit(embed("a", (1, 2)), embed("bad", (3,), (13,)), embed("c", (4,)))
    events = driver.run()
    assert rows(events, "a") == [vector_of((1, 2), SIZE)]
    assert rows(events, "c") == [vector_of((4,), SIZE)]
    (failure,) = [event for event in events if event.id == "bad"]
    assert failure.error is not None


def test_an_invalid_request_fails_alone_even_while_another_model_computes() -> None:
    driver = Driver()
    driver.submit(embed("empty", ()))
    assert driver.core.work is None
    (done,) = driver.core.flush(Sharing())
    assert [event.id for event in done.embedded if event.error] == ["empty"]
    assert not driver.core.has_work
    driver.submit(embed("long", (1,) * 65), embed("alien", (512,)), embed("a", (1,)))
    driver.core.handle(Submit(request=generation("g")))
    (done,) = [m for m in driver.core.step() if isinstance(m, StepDone)]
    assert {event.id for event in done.embedded if event.error} == {"long", "alien"}
    assert [event.id for event in done.embedded if not event.error] == ["a"]
    (refusal,) = done.events
    assert refusal.id == "g"
    assert refusal.finish is not None
    assert not driver.core.has_work


def test_cancelling() -> None:
    driver = Driver()
    driver.submit(embed("a", (1,)), embed("b", (2,)))
    driver.core.handle(CancelRequest(id="a"))
    driver.core.handle(CancelRequest(id="absent"))
    driver.core.handle(ClearCache())
    events = driver.run()
    assert [(event.id, event.error is None) for event in events] == [("a", False), ("b", True)]


def test_a_step_is_announced_with_its_requests_and_ends_with_its_figures() -> None:
    driver = Driver()
    for name, client, inputs in (("a", "key:ann", [(5,) * 64] * 6), ("b", "key:bob", [(1,) * 32])):
        driver.submit(msgspec.structs.replace(embed(name, *inputs), client=client))
    driver.run()
    announced = [message.ids for message in driver.messages if isinstance(message, StepStarted)]
    assert announced == [("a", "b"), ("a",)]
    first, second = (message for message in driver.messages if isinstance(message, StepDone))
    assert first.kv is None
    assert (first.figures.sequences, first.figures.tokens) == (4, 224)
    assert (second.figures.sequences, second.figures.tokens) == (3, 192)
    spent_ms = first.figures.spent_ms
    assert spent_ms["key:ann"] == pytest.approx(6 * spent_ms["key:bob"])


class Interrupted(FakeEmbedder):
    def __init__(self) -> None:
        super().__init__()
        self.driver: Driver | None = None
        self.answers: list[bool] = []

    def embed(self, inputs: object) -> EmbedResult:
        newcomer = Submit(request=embed("new", (1,)))
        batch = Submit(request=embed("batch", (1,), priority=Priority.BATCH))
        core = self.driver.core
        commands = (newcomer, batch, ShortenCpuToken(interrupts=True), CancelRequest(id="a"))
        self.answers = [core.is_worth_interrupting(command) for command in commands]
        is_first = not self.steps
        self.steps.append([])
        return EmbedResult(interrupted=True) if is_first else super().embed(inputs)  # type: ignore[arg-type]


@pytest.mark.parametrize("priority", Priority)
def test_a_long_batch_step_is_interrupted_for_an_interactive_newcomer(priority: Priority) -> None:
    backend = Interrupted()
    driver = backend.driver = Driver(backend, msgspec.structs.replace(OPTIONS, preempt_threshold_ms=100))
    driver.submit(embed("a", *[(1,) * 64] * 8, priority=priority))
    assert driver.step() == ()
    is_batch = priority is Priority.BATCH
    assert backend.answers == [is_batch, False, is_batch, False]
    assert len(rows(list(driver.step()), "a")) == 1, "the next step is as short as possible"
    assert backend.answers == [False] * 4, "two steps in a row are never interrupted"
    assert not driver.core.is_worth_interrupting(Submit(request=embed("new", (1,)))), "nothing runs"


def test_news_of_the_queue() -> None:
    driver = Driver()
    driver.submit(embed("a", *[(1,) * 64] * 20), embed("b", (1,) * 64, priority=Priority.BATCH))
    driver.step()
    (news,) = [message for message in driver.messages if isinstance(message, QueueState)]
    assert [(place.id, place.position) for place in news.places] == [("b", 1)]
    assert news.places[0].first_token_ms > 0
