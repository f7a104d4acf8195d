"""Outputs with a grammar, and thoughts with a budget before them, through the core and its fake backend."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from openai_cpu_server.contract.messages import (
    CancelRequest,
    Finish,
    FinishReason,
    QueueState,
    StepDone,
    StepStarted,
    TokenEvent,
)
from openai_cpu_server.contract.request import (
    Constraint,
    GenerationRequest,
    OutputMarks,
    OutputPart,
    Thinking,
)
from openai_cpu_server.engine_client.calls import GenerationAnswer
from openai_cpu_server.engine_client.culprits import CulpritLedger
from openai_cpu_server.engine_client.deaths import Death, DeathKind
from openai_cpu_server.engine_client.live import AcceptedRequest
from openai_cpu_server.engine_client.replay import RequestReplay
from openai_cpu_server.errors import GenerationFailed
from tests.engine.driver import Engine
from tests.engine.test_parts import texts_of
from tests.engine_client.test_client import client, collect, expected_text, running, text
from tests.fakes import CONTROL_TOKEN, END_TOKEN
from tests.scheduler.driver import alone, request


def constrained(
    name: str, pattern: str, *, opening: tuple[int, ...] = (), output: int = 60, **more: object
) -> GenerationRequest:
    return request(name, output=output, constraint=Constraint(grammar=pattern, opening=opening), **more)


def text_of(engine: Engine, name: str) -> str:
    return engine.whole(name).text


def generate(*requests: GenerationRequest, output: Sequence[int] = ()) -> Engine:
    engine = Engine()
    engine.serve(*requests, output=output)
    return engine


def ending(engine: Engine, name: str = "a") -> tuple[FinishReason, int]:
    finish = engine.finish(name)
    return finish.reason, finish.output_tokens


def test_a_sample_and_what_it_forces_come_in_one_event() -> None:
    one = constrained("a", "{a?bcd?}")
    engine = generate(one)
    assert engine.tokens("a") == alone(one)[:-1]
    assert [len(event.tokens) for event in engine.events] == [6, 2]
    assert text_of(engine, "a")[:2] + text_of(engine, "a")[3:6] == "{abcd"
    assert ending(engine) == (FinishReason.STOP, 9)


def test_forced_tokens_keep_to_the_limit_and_the_end_counts_as_a_token() -> None:
    for limit in range(1, 9):
        one = constrained("a", "{a?bc?}", output=limit)
        engine = generate(one)
        reason = FinishReason.LENGTH if limit < 8 else FinishReason.STOP
        assert engine.tokens("a") == alone(one)[:7]
        assert ending(engine) == (reason, limit)
    assert ending(generate(constrained("a", "abc", output=0))) == (FinishReason.LENGTH, 0)


@pytest.mark.parametrize(
    ("pattern", "output", "sampled", "forced"),
    [
        ("yes", 60, 0, 4),  # without a step
        ("{a?bcd?}", 60, 2, 7),  # two free ones, six others, and the end
        ("{a?bc?}", 5, 1, 4),
        ("??", 60, 2, 1),
        ("???", 2, 2, 0),
    ],
)
def test_forced_tokens_are_counted(pattern: str, output: int, sampled: int, forced: int) -> None:
    engine = generate(constrained("a", pattern, output=output))
    figures = engine.all_figures
    assert engine.finish().forced_tokens == sum(f.forced for f in figures) == forced
    assert sum(f.sampled for f in figures) == sampled
    assert sampled or [f.tokens for f in figures] == [0]


@pytest.mark.parametrize(
    ("pattern", "stop", "start", "num_tokens", "num_computed"),
    [("?abcdef?", ("cd",), "?ab", 5, 4), ("abcdef?", ("cd",), "ab", 4, 0), ("yes", (), "yes", 4, 0)],
)
def test_forced_output_is_never_computed(
    pattern: str, stop: tuple[str, ...], start: str, num_tokens: int, num_computed: int
) -> None:
    engine = generate(constrained("a", pattern, stop=stop))
    assert text_of(engine, "a")[start.count("?") :] == start.lstrip("?")
    assert ending(engine) == (FinishReason.STOP, num_tokens)
    assert engine.backend.num_computed == num_computed


def test_scored_tokens_come_one_by_one_and_are_the_same() -> None:
    free = constrained("a", "{a?bc?}")
    scored = request("b", tokens=free.tokens, output=60, constraint=free.constraint, top_logprobs=1)
    engine = generate(free, scored)
    assert engine.tokens("a") == engine.tokens("b")
    events = [event for event in engine.events if event.id == "b"]
    assert [logprob.token for event in events for logprob in event.logprobs] == engine.tokens("b")
    assert engine.finish("b").forced_tokens == 0


def test_prompt_scores_come_with_a_forced_beginning() -> None:
    engine = generate(constrained("a", "{ab?", prompt=9, prompt_logprobs=True))
    assert sum(len(event.prompt_logprobs) for event in engine.events) == 8
    assert text_of(engine, "a")[:3] == "{ab"


@pytest.mark.parametrize(("shows", "start"), [(True, "[CONTROL]{"), (False, "{")])
def test_control_tokens_are_text_on_request(shows: bool, start: str) -> None:
    engine = generate(constrained("a", "{?}", opening=(CONTROL_TOKEN,), show_control_tokens=shows))
    assert text_of(engine, "a")[: len(start)] == start
    assert engine.tokens("a")[0] == CONTROL_TOKEN
    assert END_TOKEN not in engine.tokens("a")


PANICKED = "The engine could not handle this request (Panic)."


@pytest.mark.parametrize(
    ("pattern", "error", "output", "is_own_fault"),
    [
        ("(", "the pattern is broken", 0, True),
        ("{??!", "the pattern has failed", 2, True),
        ("abc?!", "the pattern has failed", 3, True),
        ("!", "the pattern has failed", 0, True),
        ("%", PANICKED, 0, False),
    ],
)
def test_grammars_that_fail(pattern: str, error: str, output: int, is_own_fault: bool) -> None:
    one = constrained("good", "{???}")
    engine = generate(constrained("bad", pattern), one)
    finish = engine.finish("bad")
    assert (finish.reason, finish.error, finish.output_tokens) == (FinishReason.ERROR, error, output)
    assert finish.is_own_fault == is_own_fault
    assert engine.tokens("good") == alone(one)[:-1]
    assert engine.backend.cells == {}


def test_a_cancelled_request_gets_only_its_end() -> None:
    engine = Engine()
    engine.submit(constrained("a", "{ab?"))
    engine.core.handle(CancelRequest("a"))
    engine.run()
    assert engine.events == [TokenEvent(id="a", finish=engine.finish("a"))]


def test_an_output_continues_behind_each_event_even_within_a_burst() -> None:
    """Text that may become the stop string is held back, and lost with the engine."""
    one = constrained("a", "{??xxxx?yy" + 5 * "?*xx" + "}", opening=(7,), output=200, stop=("xxz",))
    whole = generate(one)
    assert whole.tokens("a") == alone(one)[:-1]
    for num_events in range(len(whole.events)):
        output = [token for event in whole.events[:num_events] for token in event.tokens]
        assert output + generate(one, output=output).tokens("a") == whole.tokens("a")


@pytest.mark.anyio
@pytest.mark.thorough
async def test_a_request_whose_preparation_kills_the_engine_fails_alone() -> None:
    innocent = [request(f"r{i}", output=80) for i in range(4)]
    async with running(client("step_s=0.01")) as engine:
        streams = [asyncio.create_task(collect(engine, one)) for one in innocent]
        with pytest.raises(GenerationFailed, match="died each time"):
            await collect(engine, constrained("poison", "#"))
        results = await asyncio.gather(*streams)
        assert engine.status().restarts >= 2
    assert [text(events) for events in results] == [expected_text(one) for one in innocent]


END = "</t>"


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(byte + 2 for byte in text.encode())


def thinking(
    name: str = "a", *, budget: int | None = 8, grammar: str | None = None, **more: object
) -> GenerationRequest:
    thoughts = Thinking(end=END, budget=budget, closing=tokens_of("." + END))
    return request(name, output=60, constraint=Constraint(grammar=grammar, thinking=thoughts), **more)


def test_stop_strings_are_for_the_answer_in_a_new_engine_too() -> None:
    text = text_of(generate(thinking(budget=20)), "a")
    letter = next(char for char in text[25:] if char in text[:20])
    one = thinking(budget=20, stop=(letter,))
    stopped = generate(one)
    assert text_of(stopped, "a") == text[: text.index(letter, 25)]
    whole = stopped.tokens("a")
    for num_sent in range(len(whole)):
        assert generate(one, output=whole[:num_sent]).tokens("a") == whole[num_sent:]


def test_thoughts_and_answer_are_separated_after_a_crash_too() -> None:
    one = msgspec.structs.replace(thinking(budget=6, grammar="{?a*b?}"), marks=OutputMarks(end=END))
    engine, plain = generate(one), generate(msgspec.structs.replace(one, marks=None))
    whole, num_thoughts = texts_of(engine.events), 6 + len("." + END)
    thoughts, answer = text_of(plain, "a").split(END)
    assert whole == {OutputPart.THINKING: thoughts.strip(), OutputPart.ANSWER: answer.lstrip()}
    assert engine.finish("a") == msgspec.structs.replace(plain.finish("a"), thought_tokens=num_thoughts)
    tokens = engine.tokens("a")
    for num_sent in range(len(tokens)):
        other = generate(one, output=tokens[:num_sent])
        rest = texts_of(other.events)
        assert all(whole[part].endswith(rest[part]) for part in OutputPart)
        assert other.finish().thought_tokens == num_thoughts


class Client:
    """An engine's core and its client. Messages to the client may stay in transit for a while."""

    def __init__(self, one: GenerationRequest) -> None:
        self.core = Engine().core
        self.answer = GenerationAnswer([one], cancel=lambda _: None, clock=lambda: 0.0)
        self.live = AcceptedRequest(one, self.answer, 0.0)
        self.replay = RequestReplay(lambda: 0.0, lambda: None, CulpritLedger(lambda: 0.0))
        self.replay.accept([self.live])
        self.in_transit: list[StepStarted | StepDone | QueueState] = []

    def connect(self) -> None:
        self.replay.ready(lambda *commands: [self.core.handle(command) for command in commands])

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.in_transit += self.core.step() if self.core.has_work else ()

    def deliver(self) -> None:
        messages, self.in_transit = self.in_transit, []
        for message in messages:
            self.replay.handle(message)

    async def run(self) -> Finish:
        while self.core.has_work or self.in_transit:
            self.step()
            self.deliver()
        events = [event async for event in self.answer]
        assert [token for event in events for token in event.tokens] == self.live.output
        (finish,) = [event.finish for event in events if event.finish is not None]
        assert finish is events[-1].finish
        return finish


FREE = request("a", output=40, prompt=300)
ENDED = thinking(budget=None).constraint


@pytest.mark.parametrize("num_in_transit", [0, 3])
@pytest.mark.parametrize("num_steps", [0, 1, 4, 12])
@pytest.mark.anyio
async def test_thoughts_end_behind_the_received_tokens(num_steps: int, num_in_transit: int) -> None:
    client, whole = Client(FREE), alone(FREE)
    client.connect()
    client.step(num_steps)
    client.deliver()
    client.step(num_in_transit)
    num_received = len(client.live.output)
    client.replay.end_thinking(client.live, ENDED)
    finish = await client.run()
    tokens = client.live.output
    assert tokens[:num_received] == whole[:num_received]
    assert tuple(tokens[num_received : num_received + 5]) == tokens_of("." + END)
    assert (len(tokens), finish.reason, finish.output_tokens) == (40, FinishReason.LENGTH, 40)
    assert finish.cached_tokens == 0
    ended = client.live.request
    for at in range(num_received, len(tokens)):
        assert generate(ended, output=tokens[:at]).tokens("a") == tokens[at:]


@pytest.mark.anyio
async def test_a_death_of_the_engine_does_not_undo_the_end_of_thoughts() -> None:
    client = Client(FREE)
    client.connect()
    client.step(6)
    client.deliver()
    client.step(2)
    client.replay.end_thinking(client.live, ENDED)
    num_received = len(client.live.output)
    client.in_transit.clear()
    client.replay.lost()
    client.replay.died(Death(DeathKind.KILL, "killed", "SIGKILL"))
    client.core = Engine().core
    client.connect()
    await client.run()
    assert tuple(client.live.output[num_received : num_received + 5]) == tokens_of("." + END)


@pytest.mark.parametrize("ends_thoughts", [False, True])
@pytest.mark.parametrize("stop", [(), ("never there",)])
@pytest.mark.parametrize("num_steps", [None, 0, 1, 9])
@pytest.mark.anyio
async def test_an_answer_is_ended(num_steps: int | None, stop: tuple[str, ...], ends_thoughts: bool) -> None:
    """Without an engine the answer ends in the next one, even just after the end of its thoughts."""
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
