"""Thoughts with a budget in front of answers, through the engine's core and its fake backend."""

from __future__ import annotations

import msgspec
import pytest

from openai_cpu_server.contract.messages import Finish, FinishReason, QueueState, StepDone, StepStarted
from openai_cpu_server.contract.request import (
    Constraint,
    GenerationRequest,
    OutputMarks,
    OutputPart,
    Thinking,
)
from openai_cpu_server.engine_client.answers import GenerationAnswer
from openai_cpu_server.engine_client.culprits import CulpritLedger
from openai_cpu_server.engine_client.deaths import Death, DeathKind
from openai_cpu_server.engine_client.live import AcceptedRequest
from openai_cpu_server.engine_client.replay import RequestReplay
from tests.engine.test_constrained import generate, resumed, shown
from tests.engine.test_core import Engine
from tests.engine.test_parts import texts_of
from tests.scheduler.driver import alone, request

END = "</t>"


def spelt(text: str) -> tuple[int, ...]:
    return tuple(byte + 2 for byte in text.encode())


def thinking(
    name: str = "a",
    *,
    budget: int | None = 8,
    grammar: str | None = None,
    **more: object,
) -> GenerationRequest:
    thoughts = Thinking(end=END, budget=budget, closing=spelt("." + END))
    return request(name, output=60, constraint=Constraint(grammar=grammar, thinking=thoughts), **more)


def test_stop_strings_are_for_the_answer_in_a_new_engine_too() -> None:
    text = shown(generate(thinking(budget=20)), "a")
    letter = next(char for char in text[25:] if char in text[:20])
    one = thinking(budget=20, stop=(letter,))
    stopped = generate(one)
    assert shown(stopped, "a") == text[: text.index(letter, 25)]
    whole = stopped.told("a")
    for num_told in range(len(whole)):
        assert resumed(one, whole[:num_told]).told("a") == whole[num_told:]


def test_thoughts_and_answer_are_told_apart_also_behind_a_crash() -> None:
    marks = OutputMarks(end=END)
    one = msgspec.structs.replace(thinking(budget=6, grammar="{?a*b?}"), marks=marks)
    engine, plain = generate(one), generate(msgspec.structs.replace(one, marks=None))
    whole, num_thoughts = texts_of(engine.events), 6 + len("." + END)
    thoughts, answer = shown(plain, "a").split(END)
    assert whole == {OutputPart.THINKING: thoughts.strip(), OutputPart.ANSWER: answer.lstrip()}
    assert engine.finish("a") == msgspec.structs.replace(plain.finish("a"), thought_tokens=num_thoughts)
    tokens = engine.told("a")
    for num_told in range(len(tokens)):
        other = resumed(one, tokens[:num_told])
        rest = texts_of(other.events)
        assert all(whole[part].endswith(rest[part]) for part in OutputPart)
        assert other.finish().thought_tokens == num_thoughts


# -- ended by somebody, while they go on -------------------------------------------------------------------


class Client:
    """An engine's core, and the client's side of it: what it is told may be on its way for a while."""

    def __init__(self, one: GenerationRequest) -> None:
        self.core = Engine().core
        self.answer = GenerationAnswer([one], cancel=lambda _: None, clock=lambda: 0.0)
        self.live = AcceptedRequest(one, self.answer, 0.0)
        self.replay = RequestReplay(lambda: 0.0, lambda: None, CulpritLedger(lambda: 0.0))
        self.replay.accept([self.live])
        self.on_its_way: list[StepStarted | StepDone | QueueState] = []

    def connect(self) -> None:
        self.replay.ready(lambda *commands: [self.core.handle(command) for command in commands])

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.on_its_way += self.core.step() if self.core.has_work else ()

    def hear(self) -> None:
        messages, self.on_its_way = self.on_its_way, []
        for message in messages:
            self.replay.heard(message)

    async def run(self) -> Finish:
        """To its end, which is told once."""
        while self.core.has_work or self.on_its_way:
            self.step()
            self.hear()
        events = [event async for event in self.answer]
        assert [token for event in events for token in event.tokens] == self.live.output
        (finish,) = [event.finish for event in events if event.finish is not None]
        assert finish is events[-1].finish
        return finish


FREE = request("a", output=40, prompt=300)
ENDED = thinking(budget=None).constraint


@pytest.mark.parametrize("num_unheard", [0, 3])
@pytest.mark.parametrize("num_steps", [0, 1, 4, 12])
@pytest.mark.anyio
async def test_thoughts_are_ended_behind_what_was_told(num_steps: int, num_unheard: int) -> None:
    client, whole = Client(FREE), alone(FREE)
    client.connect()
    client.step(num_steps)
    client.hear()
    client.step(num_unheard)
    num_told = len(client.live.output)
    client.replay.end_thinking(client.live, ENDED)
    finish = await client.run()
    tokens = client.live.output
    assert tokens[:num_told] == whole[:num_told]
    assert tuple(tokens[num_told : num_told + 5]) == spelt("." + END)
    assert (len(tokens), finish.reason, finish.output_tokens) == (40, FinishReason.LENGTH, 40)
    assert finish.cached_tokens == 0
    ended = client.live.request
    assert isinstance(ended, GenerationRequest)
    for at in range(num_told, len(tokens)):
        assert resumed(ended, tokens[:at]).told("a") == tokens[at:]


@pytest.mark.anyio
async def test_an_engine_that_dies_after_that_changes_nothing() -> None:
    client = Client(FREE)
    client.connect()
    client.step(6)
    client.hear()
    client.step(2)
    client.replay.end_thinking(client.live, ENDED)
    num_told = len(client.live.output)
    client.on_its_way.clear()
    client.replay.lost()
    client.replay.died(Death(DeathKind.KILL, "killed", "SIGKILL"))
    client.core = Engine().core
    client.connect()
    await client.run()
    assert tuple(client.live.output[num_told : num_told + 5]) == spelt("." + END)


@pytest.mark.parametrize("ends_thoughts", [False, True])
@pytest.mark.parametrize("stop", [(), ("never there",)])
@pytest.mark.parametrize("num_steps", [None, 0, 1, 9])
@pytest.mark.anyio
async def test_an_answer_is_ended_as_it_is(
    num_steps: int | None, stop: tuple[str, ...], ends_thoughts: bool
) -> None:
    """Where there is no engine yet it ends in the next one, also when its thoughts have just been ended."""
    one = request("a", output=40, stop=stop)
    client, whole = Client(one), alone(one)
    if num_steps is not None:
        client.connect()
        client.step(num_steps)
    if ends_thoughts:
        client.replay.end_thinking(client.live, ENDED)
    client.replay.stop(client.live)
    if num_steps is None:
        client.connect()
    finish = await client.run()
    assert finish.reason is FinishReason.STOP
    if not ends_thoughts:
        assert client.live.output == whole[: num_steps or 0]
        assert finish.output_tokens == len(client.live.output)
