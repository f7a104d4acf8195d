"""Turns and steps of an engine on the test's clocks, and commands that are prepared first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from openai_cpu_server.contract.media import MeasuredMedia, PictureSize, SoundSize
from openai_cpu_server.contract.messages import (
    ALONE,
    CancelRequest,
    ClearCache,
    CpuToken,
    CpuTokenReturned,
    EngineWants,
    Handling,
    MeasureMedia,
    MediaMeasured,
    Sharing,
    ShortenCpuToken,
    Submit,
)
from openai_cpu_server.contract.request import Constraint, Priority
from openai_cpu_server.engine.base import CheckedAdapter, EngineWork, PreparedRequest, StepTimer
from openai_cpu_server.engine.cores import PIECE_S, EngineCpuToken, SharedCpuToken
from openai_cpu_server.engine.loop import Inbox, Preparation
from tests.clock import Clock
from tests.scheduler.driver import request
from tests.waiting import DEADLINE_S

BATCH, INTERACTIVE = Priority.BATCH, Priority.INTERACTIVE
LOADING = EngineWants(work=BATCH, is_loading=True)


class Client:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.messages: list[EngineWants | CpuTokenReturned] = []
        self.load_requests = threading.Semaphore(0)
        self.num_woken = 0
        self.turn = SharedCpuToken(self._receive, wake=self._wake, clock=lambda: self.now_s)

    def _receive(self, message: EngineWants | CpuTokenReturned) -> None:
        self.messages.append(message)
        if message in (LOADING, CpuTokenReturned(wants=LOADING)):
            self.load_requests.release()

    def _wake(self) -> None:
        self.num_woken += 1

    def take_messages(self) -> list[EngineWants | CpuTokenReturned]:
        messages, self.messages = self.messages, []
        return messages


def holding_client(work: Priority = BATCH, limit_ms: float | None = None) -> Client:
    client = Client()
    client.turn.settle(work)
    client.turn.granted(CpuToken(limit_ms=limit_ms))
    client.take_messages()
    return client


def test_an_engine_alone_may_always_compute() -> None:
    turn = EngineCpuToken()
    turn.settle(BATCH)
    assert turn.is_held
    assert not turn.is_wanted
    assert turn.sharing == ALONE


def test_an_engine_sends_its_wants_when_they_change() -> None:
    client = Client()
    for work in (None, BATCH, BATCH, INTERACTIVE, None):
        client.turn.settle(work)
    assert client.take_messages() == [EngineWants(work=BATCH), EngineWants(work=INTERACTIVE), EngineWants()]
    assert not client.turn.is_held


def test_an_engine_holds_the_turn_while_it_has_work_and_no_other_wants_it() -> None:
    client = holding_client()
    assert client.num_woken == 1
    for _ in range(3):
        client.now_s += 100
        client.turn.computed()
        client.turn.settle(BATCH)
    assert client.turn.is_held
    client.turn.settle(None)
    assert client.take_messages() == [CpuTokenReturned(wants=EngineWants())]
    assert not client.turn.is_held


def test_a_turn_is_for_one_step_at_least() -> None:
    client = holding_client(limit_ms=0)
    client.turn.settle(BATCH)
    assert client.turn.is_held
    client.turn.computed()
    client.turn.settle(BATCH)
    assert client.take_messages() == [CpuTokenReturned(wants=EngineWants(work=BATCH))]


def test_a_recall_sets_a_new_limit() -> None:
    client = holding_client()
    client.turn.computed()
    client.turn.shortened(ShortenCpuToken(after_ms=500))
    client.turn.settle(BATCH)
    assert client.turn.is_held
    client.now_s += 0.5
    assert client.turn.is_wanted
    client.turn.settle(BATCH)
    assert not client.turn.is_held


def test_a_recall_that_comes_too_late_is_ignored() -> None:
    client = holding_client()
    client.turn.settle(None)
    client.turn.shortened(ShortenCpuToken())
    client.turn.settle(BATCH)
    client.turn.granted(CpuToken(beside_interactive=True))
    assert client.turn.sharing == Sharing(beside_interactive=True)
    client.turn.computed()
    client.turn.settle(BATCH)
    assert client.turn.is_held


def test_an_unwanted_turn_goes_back() -> None:
    client = Client()
    client.turn.settle(BATCH)
    client.turn.settle(None)
    client.turn.granted(CpuToken())
    client.turn.settle(None)
    assert client.take_messages() == [
        EngineWants(work=BATCH),
        EngineWants(),
        CpuTokenReturned(wants=EngineWants()),
    ]


def test_estimates_grow_with_the_time_that_others_compute() -> None:
    client = Client()
    for _ in range(300):
        client.turn.settle(INTERACTIVE)
        client.now_s += 0.1
        client.turn.granted(CpuToken(limit_ms=0))
        client.turn.settle(INTERACTIVE)
        client.now_s += 0.05
        client.turn.computed()
    assert client.turn.sharing.slowdown == pytest.approx(3, rel=0.05)
    client.turn.granted(CpuToken())
    for _ in range(300):
        client.now_s += 0.1
        client.turn.settle(INTERACTIVE)
    assert client.turn.sharing.slowdown == pytest.approx(1, rel=0.05)


def test_a_load_is_cut_into_pieces() -> None:
    client = Client()

    def grant() -> None:
        for _ in range(3):
            assert client.load_requests.acquire(timeout=DEADLINE_S)
            client.turn.granted(CpuToken())

    reader = threading.Thread(target=grant)
    reader.start()
    for _ in range(6):
        client.turn.load_on()
        client.now_s += 0.5 * PIECE_S
    reader.join()
    assert client.take_messages() == [
        LOADING,
        CpuTokenReturned(wants=LOADING),
        CpuTokenReturned(wants=LOADING),
    ]


def test_a_load_ends_when_the_client_is_gone() -> None:
    client = Client()
    client.turn.close()
    with pytest.raises(ConnectionError):
        client.turn.load_on()


def test_a_step_can_be_interrupted_while_it_has_long_left_but_never_twice_in_a_row() -> None:
    clock = Clock(100.0)
    timer = StepTimer(clock, clock, preempt_threshold_s=0.1)
    assert not timer.begin(1000.0, may_interrupt=True)
    assert timer.urge()
    clock.now_s += 0.95
    assert not timer.urge()
    clock.now_s -= 0.5
    timer.end(is_interrupted=True)
    assert not timer.begin(1000.0, may_interrupt=True)
    assert not timer.urge()
    timer.end(is_interrupted=False)
    assert not timer.begin(1000.0, may_interrupt=False)
    assert not timer.urge()
    timer.end(is_interrupted=False)
    assert not timer.begin(1000.0, may_interrupt=True)
    assert timer.urge()


def test_a_long_step_is_interrupted_for_a_request_that_came_while_it_was_planned() -> None:
    clock = Clock(100.0)
    timer = StepTimer(clock, clock, preempt_threshold_s=0.1)
    for predicted_ms, may_interrupt in ((1000.0, True), (1000.0, False), (99.0, True)):
        assert not timer.urge()
        expected = may_interrupt and predicted_ms > 100
        assert timer.begin(predicted_ms, may_interrupt=may_interrupt) is expected
        timer.end(is_interrupted=False)
    assert not timer.begin(1000.0, may_interrupt=True), "the request came before the last step ended"


def test_times_cover_the_last_step_and_an_interrupted_step_has_no_cpu_time() -> None:
    clock, cpu_clock = Clock(100.0), Clock(100.0)
    timer = StepTimer(clock, cpu_clock, preempt_threshold_s=0.1)
    for is_interrupted in (False, True):
        timer.begin(5.0, may_interrupt=True)
        clock.now_s += 2.0
        cpu_clock.now_s += 3.0
        timer.end(is_interrupted=is_interrupted)
        cpu_clock.now_s += 1.0
        assert (timer.started_s, timer.elapsed_ms) == (clock.now_s - 2.0, 2000.0)
        assert timer.cpu_ms() == (0.0 if is_interrupted else 4000.0)


def test_the_lateness_of_recent_steps_is_averaged_and_forgotten() -> None:
    clock = Clock(100.0)
    timer = StepTimer(clock, clock, preempt_threshold_s=0.1)
    assert timer.lateness == 1.0

    def step(predicted_ms: float, took_ms: float, *, is_interrupted: bool = False) -> None:
        timer.begin(predicted_ms, may_interrupt=False)
        clock.now_s += took_ms / 1000
        timer.end(is_interrupted=is_interrupted)

    step(1.0, 30.0)
    assert 1.0 < timer.lateness < 1.5, "a short step counts little"
    for _ in range(10):
        step(100.0, 250.0)
    assert 2.2 < timer.lateness < 2.5
    step(100.0, 10.0, is_interrupted=True)
    assert 2.2 < timer.lateness < 2.5, "an interrupted step does not count"
    clock.now_s += 60.0
    step(100.0, 100.0)
    assert 1.0 < timer.lateness < 1.1
    for _ in range(50):
        step(100.0, 80.0)
    assert timer.lateness == 1.0


Message = EngineWork | Handling | MediaMeasured


class Story:
    """Messages of a preparation in their order. Each preparation waits until the test releases it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._starts = threading.Semaphore(0)
        self._releases = threading.Semaphore(0)
        self._news = threading.Condition()

    def collect(self, message: Message) -> None:
        with self._news:
            self.messages.append(message)
            self._news.notify()

    def prepare(self, submit: Submit) -> PreparedRequest:
        self._starts.release()
        assert self._releases.acquire(timeout=DEADLINE_S)
        return PreparedRequest(submit, ())

    def wait_for_start(self) -> None:
        assert self._starts.acquire(timeout=DEADLINE_S)

    def release(self, times: int = 1) -> None:
        self._releases.release(times)

    def wait_for(self, num: int) -> list[str]:
        with self._news:
            assert self._news.wait_for(lambda: len(self.messages) >= num, DEADLINE_S)
            return [describe(message) for message in self.messages]


def describe(message: Message) -> str:
    match message:
        case Handling(id=None):
            return "handled"
        case Handling(id=name):
            return f"handling {name}"
        case PreparedRequest(submit=submit, failure=failure):
            return f"{'refused' if failure else 'prepared'} {submit.request.id}"
        case Submit(request=one):
            return f"submit {one.id}"
        case CancelRequest(id=name):
            return f"cancel {name}"
        case MediaMeasured(media=media):
            return f"measured {media[0].size.words}"
    return type(message).__name__


@contextmanager
def preparing() -> Iterator[tuple[Story, Preparation]]:
    story = Story()
    with Preparation(
        story.prepare, CheckedAdapter, measure=MeasuredMedia, announce=story.collect, hand_on=story.collect
    ) as preparation:
        yield story, preparation


def constrained(name: str, priority: Priority = Priority.INTERACTIVE) -> Submit:
    return Submit(request(name, priority=priority, constraint=Constraint(grammar="x")))


def test_only_requests_with_a_constraint_wait_and_they_are_announced() -> None:
    with preparing() as (story, preparation):
        preparation.take(constrained("slow"))
        story.wait_for_start()
        preparation.take(Submit(request("plain")))
        preparation.take(CancelRequest(id="other"))
        preparation.take(ClearCache())
        assert story.wait_for(4) == ["handling slow", "submit plain", "cancel other", "ClearCache"]
        story.release()
        assert story.wait_for(6)[4:] == ["handled", "prepared slow"]


def test_a_cancellation_follows_its_request_which_is_refused_if_its_preparation_has_not_begun() -> None:
    with preparing() as (story, preparation):
        preparation.take(constrained("a"))
        story.wait_for_start()
        for command in (CancelRequest(id="a"), constrained("b"), CancelRequest(id="b")):
            preparation.take(command)
        story.release()
        lines = ["handling a", "handled", "prepared a", "cancel a", "refused b", "cancel b"]
        assert story.wait_for(6) == lines
        preparation.take(CancelRequest(id="a"))
        assert story.wait_for(7)[6:] == ["cancel a"]


def test_interactive_requests_go_before_batch_work() -> None:
    with preparing() as (story, preparation):
        for name in ("first", "second"):
            preparation.take(constrained(name, Priority.BATCH))
        story.wait_for_start()
        preparation.take(constrained("interactive"))
        story.release(3)
        prepared = [line for line in story.wait_for(9) if line.startswith("prepared")]
        assert prepared == ["prepared first", "prepared interactive", "prepared second"]


def test_media_are_measured_while_a_constraint_is_prepared() -> None:
    with preparing() as (story, preparation):
        preparation.take(constrained("first"))
        story.wait_for_start()
        preparation.take(MeasureMedia((PictureSize(7, 5), SoundSize(9))))
        measured = ["measured a picture of 7 x 5 pixels", "measured a sound of 9 samples"]
        assert story.wait_for(3) == ["handling first", *measured]
        story.release(1)


def test_commands_come_out_of_the_inbox_in_order_and_its_end_stays_news() -> None:
    inbox, commands = Inbox(), [CancelRequest(id="a"), ClearCache()]
    for command in commands:
        inbox.put(command)
    assert inbox.has_news
    assert list(inbox.drain()) == commands
    assert not inbox.has_news
    inbox.close()
    assert list(inbox.drain()) == []
    assert inbox.has_news
    inbox.wait(None)
