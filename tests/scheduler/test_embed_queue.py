"""Inputs that a step takes from the queue of embedding requests."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.scheduler.embed_queue import EmbedCapacity, EmbedPart, EmbedQueue

CAPACITY = EmbedCapacity(max_inputs=8, max_tokens=100, budget_tokens=50)


def embed(
    name: str, *lengths: int, client: str = "", group: str = "", priority: Priority = Priority.INTERACTIVE
) -> EmbedRequest:
    inputs = tuple((1,) * length for length in lengths)
    return EmbedRequest(id=name, inputs=inputs, client=client, group=group, priority=priority)


def queue(*requests: EmbedRequest, floor: float = 0.1) -> EmbedQueue:
    waiting = EmbedQueue(batch_floor=floor)
    for request in requests:
        waiting.add(request, 0)
    return waiting


def ranges(parts: list[EmbedPart]) -> list[tuple[str, int, int]]:
    return [(part.pending.request.id, part.first, part.count) for part in parts]


def compose_all(waiting: EmbedQueue, capacity: EmbedCapacity = CAPACITY) -> list[list[tuple[str, int, int]]]:
    steps = []
    while len(waiting):
        parts = waiting.compose(capacity)
        steps.append(ranges(parts))
        waiting.computed(parts)
    return steps


PACKED = {
    "up to the budget": ([embed("a", *[10] * 7)], [[("a", 0, 5)], [("a", 5, 2)]]),
    "from several requests": ([embed(name, 10) for name in "abcd"], [[(name, 0, 1) for name in "abcd"]]),
    "up to the number of sequences": ([embed("a", *[1] * 10)], [[("a", 0, 8)], [("a", 8, 2)]]),
    "an input beyond the budget is alone": ([embed("a", 90, 10, 90)], [[("a", n, 1)] for n in range(3)]),
}


@pytest.mark.parametrize("name", PACKED)
def test_inputs_are_packed(name: str) -> None:
    requests, expected = PACKED[name]
    assert compose_all(queue(*requests)) == expected


def test_inputs_that_a_dead_engine_has_computed_are_left_out() -> None:
    waiting = EmbedQueue(batch_floor=0.1)
    waiting.add(embed("a", 10, 10, 10), 2)
    assert compose_all(waiting) == [[("a", 2, 1)]]


def test_a_short_request_does_not_wait_for_the_whole_of_a_long_one() -> None:
    waiting = queue(embed("long", *[10] * 100))
    waiting.computed(waiting.compose(CAPACITY))
    waiting.add(embed("short", 10, client="other"), 0)
    assert ("short", 0, 1) in ranges(waiting.compose(CAPACITY))


def test_groups_clients_and_their_requests_take_turns() -> None:
    long = [embed(name, *[10] * 100, client=name, group="here") for name in "ab"]
    requests = [*long, embed("short", 10, client="a", group="here"), embed("one", 10, 10, group="there")]
    assert ranges(queue(*requests).compose(CAPACITY)) == [
        ("a", 0, 1),
        ("one", 0, 2),
        ("b", 0, 1),
        ("short", 0, 1),
    ]


def test_interactive_inputs_go_first_and_batch_fills_up() -> None:
    waiting = queue(embed("b", *[10] * 9, priority=Priority.BATCH), embed("i", 10, 10))
    assert ranges(waiting.compose(CAPACITY)) == [("i", 0, 2), ("b", 0, 3)]


@pytest.mark.parametrize("length", [5, 30, 80])
def test_batch_work_keeps_its_share_beside_endless_interactive_work(length: int) -> None:
    batch, tokens = embed("b", *[length] * 1000, priority=Priority.BATCH), Counter[str]()
    waiting = queue(batch, embed("i", *[10] * 100_000), floor=0.2)
    for _ in range(100):
        parts = waiting.compose(CAPACITY)
        for part in parts:
            tokens[part.pending.request.id] += sum(map(len, part.inputs))
        waiting.computed(parts)
    assert 0.15 < tokens["b"] / tokens.total() < 0.3


def test_the_best_priority_follows_removals() -> None:
    waiting = queue(embed("b", 1, priority=Priority.BATCH), embed("i", 1))
    for best, name in ((Priority.INTERACTIVE, "i"), (Priority.BATCH, "b")):
        assert waiting.best_priority is best
        assert waiting.remove(name) is not None
        assert waiting.remove(name) is None
    assert waiting.best_priority is None
    assert waiting.compose(CAPACITY) == []


def test_waiting_requests_are_listed_in_the_order_of_their_start() -> None:
    of_x = [embed("x1", 1, client="x"), embed("x2", 1, client="x")]
    waiting = queue(embed("b", 1, priority=Priority.BATCH), *of_x, embed("y", 1, client="y"))
    assert [one.request.id for one in waiting.waiting] == ["x1", "y", "x2", "b"]
    assert waiting.num_waiting == 4


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 100), min_size=1, max_size=20),
            st.sampled_from(["", "x", "y"]),
            st.sampled_from(Priority),
        ),
        max_size=12,
    ),
    st.integers(1, 100),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_every_input_is_computed_once_and_in_order(
    specs: list[tuple[list[int], str, Priority]], budget: int, floor: float
) -> None:
    requests = [embed(str(n), *lengths, client=c, priority=p) for n, (lengths, c, p) in enumerate(specs)]
    capacity = CAPACITY._replace(budget_tokens=budget)
    waiting, done = queue(*requests, floor=floor), dict.fromkeys((r.id for r in requests), 0)
    for _ in range(math.ceil(sum(len(r.inputs) for r in requests)) + 1):
        parts = waiting.compose(capacity)
        assert sum(part.count for part in parts) <= capacity.max_inputs
        tokens = sum(len(tokens) for part in parts for tokens in part.inputs)
        assert tokens <= capacity.budget_tokens or sum(part.count for part in parts) == 1
        assert parts or not len(waiting)
        for part in parts:
            assert part.first == done[part.pending.request.id]
            done[part.pending.request.id] += part.count
        waiting.computed(parts)
    assert done == {request.id: len(request.inputs) for request in requests}
    assert waiting.best_priority is None
