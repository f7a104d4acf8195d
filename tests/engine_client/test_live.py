"""Live requests with their states and places, and the events that snapshots and streams get of them."""

from __future__ import annotations

import anyio
import pytest

from openai_cpu_server.contract.engine import LiveRequest, RequestState
from openai_cpu_server.contract.messages import Finish, FinishReason, QueuePlace, TokenEvent
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.calls import GenerationAnswer
from openai_cpu_server.engine_client.live import AcceptedRequest, AcceptedRequests
from openai_cpu_server.errors import RequestCancelled
from tests.scheduler.driver import request
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.anyio

WAITING, RUNNING = RequestState.WAITING, RequestState.RUNNING


def accept(live: AcceptedRequests, *ids: str, submitted_s: float = 0.0) -> GenerationAnswer:
    requests = [request(name, prompt=5, priority=Priority.BATCH) for name in ids]
    generation = GenerationAnswer(requests, cancel=lambda _: None, clock=lambda: 0.0)
    for one in requests:
        live.add(AcceptedRequest(one, generation, submitted_s))
    return generation


def states(live: AcceptedRequests) -> dict[str, RequestState]:
    return {one.request.id: one.state for one in live}


def finish(**counts: int) -> Finish:
    return Finish(reason=FinishReason.STOP, output_tokens=2, **counts)


def test_a_request_waits_until_it_is_in_a_step() -> None:
    live = AcceptedRequests()
    accept(live, "a/0", "a/1")
    live.computing(("a/1", "foreign"))
    assert states(live) == {"a/0": WAITING, "a/1": RUNNING}
    assert live.count(RUNNING) == {"interactive": 0, "batch": 1}
    assert live.count(WAITING) == {"interactive": 0, "batch": 1}


def test_a_request_that_is_left_out_of_a_step_runs_but_a_preempted_one_waits() -> None:
    live = AcceptedRequests()
    accept(live, "a/0")
    live.computing(("a/0",))
    live.computing(())
    assert states(live) == {"a/0": RUNNING}
    live.waiting([QueuePlace("a/0", 1, 50.0)], now_s=1.0)
    assert states(live) == {"a/0": WAITING}


def test_a_snapshot_updates_the_last_estimate_with_the_time() -> None:
    live = AcceptedRequests()
    accept(live, "a/0", submitted_s=10.0)
    live.waiting([QueuePlace("a/0", 3, 1500.0)], now_s=11.0)
    (one,) = live
    one.output.extend([5, 6])
    expected = LiveRequest(
        id="a/0",
        priority=Priority.BATCH,
        state=WAITING,
        prompt_tokens=5,
        output_tokens=2,
        age_s=2.0,
        client="",
        position=3,
        first_token_ms=500.0,
    )
    assert one.snapshot(12.0) == expected
    assert one.snapshot(99.0).first_token_ms == 0.0


def test_a_place_is_forgotten_when_it_is_left_out_and_when_its_request_runs() -> None:
    live = AcceptedRequests()
    accept(live, "a/0", "a/1")
    live.waiting([QueuePlace("a/0", 1, 1.0), QueuePlace("a/1", 2, 2.0)], now_s=0.0)
    live.waiting([QueuePlace("a/0", 1, 1.0)], now_s=0.5)
    assert [one.snapshot(1.0).position for one in live] == [1, None]
    live.computing(("a/0",))
    assert [one.snapshot(1.0).position for one in live] == [None, None]


def test_a_call_has_its_foremost_place_while_all_its_sequences_wait() -> None:
    live = AcceptedRequests()
    two, one = accept(live, "a/0", "a/1"), accept(live, "b/0")
    places = [
        QueuePlace("a/1", 4, 40.0),
        QueuePlace("b/0", 3, 30.0),
        QueuePlace("a/0", 2, 20.0),
        QueuePlace("gone", 1, 10.0),
    ]
    assert live.waiting(places, now_s=0.0) == {two: places[2], one: places[1]}
    live.computing(("a/0",))
    assert live.waiting(places[:2], now_s=0.0) == {one: places[1]}


def test_a_call_is_found_by_its_own_id_and_those_of_its_sequences() -> None:
    live = AcceptedRequests()
    accept(live, "a/0", "a/1")
    accept(live, "ab/0")
    accept(live, "c")
    for name in ("a", "a/0", "a/1"):
        assert [one.request.id for one in live.call_of(name)] == ["a/0", "a/1"]
    assert [one.request.id for one in live.call_of("c")] == ["c"]
    for name in ("", "/", "/0", "a/", "a/2", "0"):
        assert live.call_of(name) == []


def test_counts_of_a_generation_are_sums_over_its_sequences() -> None:
    generation = accept(AcceptedRequests(), "a/0", "a/1")
    generation.push(
        TokenEvent(id="a/0", finish=finish(preemptions=1, interruptions=2, padded_tokens=30, forced_tokens=1))
    )
    drafts = finish(preemptions=4, padded_tokens=5, forced_tokens=2, drafted_tokens=9, accepted_tokens=6)
    generation.push(TokenEvent(id="a/1", finish=drafts))
    figures = generation.figures
    assert (figures.output_tokens, figures.preemptions, figures.interruptions) == (4, 5, 2)
    assert (figures.padded_tokens, figures.forced_tokens) == (35, 3)
    assert (figures.drafted_tokens, figures.accepted_tokens) == (9, 6)


async def test_progress_has_places_between_events_and_the_stream_has_none() -> None:
    place, token = QueuePlace("a/0", 1, 5.0), TokenEvent(id="a/0", tokens=(5,), text="x")
    end = TokenEvent(id="a/0", finish=finish())
    for with_progress in (True, False):
        generation = accept(AcceptedRequests(), "a/0")
        generation.wait_at(place)
        generation.push(token)
        generation.push(end)
        items = [item async for item in (generation.progress() if with_progress else generation)]
        assert items == ([place, token, end] if with_progress else [token, end])


async def test_events_before_a_cancellation_are_delivered_first() -> None:
    generation = accept(AcceptedRequests(), "a/0", "a/1")
    generation.push(TokenEvent(id="a/0", tokens=(5,), text="x"))
    generation.fail("a/0", RequestCancelled("first"))
    generation.fail("a/1", RequestCancelled("second"))
    texts: list[str] = []

    async def read() -> None:
        async for event in generation:
            texts.append(event.text)

    with pytest.raises(RequestCancelled, match="first"), anyio.fail_after(DEADLINE_S):
        await read()
    assert texts == ["x"]
