"""When an engine may compute: its turn and its steps on our own clocks; commands that are prepared first."""

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
    EngineWants,
    GrantTurn,
    Handling,
    MeasureMedia,
    MediaMeasured,
    Sharing,
    ShortenTurn,
    Submit,
    TurnBack,
)
from openai_cpu_server.contract.request import Constraint, Priority
from openai_cpu_server.engine.base import CheckedAdapter, PreparedRequest, StepTimer, Work
from openai_cpu_server.engine.cores import PIECE_S, EngineTurn, SharedTurn
from openai_cpu_server.engine.loop import Inbox, Preparation
from tests.clock import Clock
from tests.scheduler.driver import request
from tests.waiting import DEADLINE_S

BATCH, INTERACTIVE = Priority.BATCH, Priority.INTERACTIVE
LOADING = EngineWants(work=BATCH, is_loading=True)


class Client:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.heard: list[EngineWants | TurnBack] = []
        self.wishes_to_load = threading.Semaphore(0)
        self.num_woken = 0
        self.turn = SharedTurn(self._hear, wake=self._woken, clock=lambda: self.now_s)

    def _hear(self, message: EngineWants | TurnBack) -> None:
        self.heard.append(message)
        if message in (LOADING, TurnBack(wants=LOADING)):
            self.wishes_to_load.release()

    def _woken(self) -> None:
        self.num_woken += 1

    def told(self) -> list[EngineWants | TurnBack]:
        told = list(self.heard)
        self.heard.clear()
        return told


def holding(work: Priority = BATCH, limit_ms: float | None = None) -> Client:
    client = Client()
    client.turn.settle(work)
    client.turn.granted(GrantTurn(limit_ms=limit_ms))
    client.told()
    return client


def test_an_engine_alone_may_always_compute() -> None:
    turn = EngineTurn()
    turn.settle(BATCH)
    assert turn.is_held
    assert not turn.is_wanted
    assert turn.sharing == ALONE


def test_what_it_wants_is_told_when_that_changes() -> None:
    client = Client()
    for work in (None, BATCH, BATCH, INTERACTIVE, None):
        client.turn.settle(work)
    assert client.told() == [EngineWants(work=BATCH), EngineWants(work=INTERACTIVE), EngineWants()]
    assert not client.turn.is_held


def test_the_turn_is_kept_as_long_as_there_is_work_and_nobody_wants_it() -> None:
    client = holding()
    assert client.num_woken == 1
    for _ in range(3):
        client.now_s += 100
        client.turn.computed()
        client.turn.settle(BATCH)
    assert client.turn.is_held
    client.turn.settle(None)
    assert client.told() == [TurnBack(wants=EngineWants())]
    assert not client.turn.is_held


def test_a_turn_is_for_one_step_at_least() -> None:
    client = holding(limit_ms=0)
    client.turn.settle(BATCH)
    assert client.turn.is_held
    client.turn.computed()
    client.turn.settle(BATCH)
    assert client.told() == [TurnBack(wants=EngineWants(work=BATCH))]


def test_a_recall_sets_a_new_limit() -> None:
    client = holding()
    client.turn.computed()
    client.turn.recalled(ShortenTurn(after_ms=500))
    client.turn.settle(BATCH)
    assert client.turn.is_held
    client.now_s += 0.5
    assert client.turn.is_wanted
    client.turn.settle(BATCH)
    assert not client.turn.is_held


def test_a_recall_that_comes_too_late_is_no_matter() -> None:
    client = holding()
    client.turn.settle(None)
    client.turn.recalled(ShortenTurn())
    client.turn.settle(BATCH)
    client.turn.granted(GrantTurn(beside_interactive=True))
    assert client.turn.sharing == Sharing(beside_interactive=True)
    client.turn.computed()
    client.turn.settle(BATCH)
    assert client.turn.is_held


def test_a_turn_that_comes_when_nothing_is_wanted_any_more_goes_back() -> None:
    client = Client()
    client.turn.settle(BATCH)
    client.turn.settle(None)
    client.turn.granted(GrantTurn())
    client.turn.settle(None)
    assert client.told() == [EngineWants(work=BATCH), EngineWants(), TurnBack(wants=EngineWants())]


def test_estimates_grow_with_the_time_that_others_compute() -> None:
    client = Client()
    for _ in range(300):
        client.turn.settle(INTERACTIVE)
        client.now_s += 0.1
        client.turn.granted(GrantTurn(limit_ms=0))
        client.turn.settle(INTERACTIVE)
        client.now_s += 0.05
        client.turn.computed()
    assert client.turn.sharing.slowdown == pytest.approx(3, rel=0.05)
    client.turn.granted(GrantTurn())
    for _ in range(300):
        client.now_s += 0.1
        client.turn.settle(INTERACTIVE)
    assert client.turn.sharing.slowdown == pytest.approx(1, rel=0.05)


def test_a_load_is_cut_into_pieces() -> None:
    client = Client()

    def grant() -> None:
        for _ in range(3):
            assert client.wishes_to_load.acquire(timeout=DEADLINE_S)
            client.turn.granted(GrantTurn())

    reader = threading.Thread(target=grant)
    reader.start()
    for _ in range(6):
        client.turn.load_on()
        client.now_s += 0.5 * PIECE_S
    reader.join()
    assert client.told() == [LOADING, TurnBack(wants=LOADING), TurnBack(wants=LOADING)]


def test_a_load_ends_when_the_client_is_gone() -> None:
    client = Client()
    client.turn.close()
    with pytest.raises(ConnectionError):
        client.turn.load_on()


def test_a_step_can_be_thrown_away_while_it_has_long_left_and_never_twice_in_a_row() -> None:
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


def test_a_long_step_is_thrown_away_for_what_came_while_it_was_planned() -> None:
    clock = Clock(100.0)
    timer = StepTimer(clock, clock, preempt_threshold_s=0.1)
    for predicted_ms, may_interrupt in ((1000.0, True), (1000.0, False), (99.0, True)):
        assert not timer.urge()
        expected = may_interrupt and predicted_ms > 100
        assert timer.begin(predicted_ms, may_interrupt=may_interrupt) is expected
        timer.end(is_interrupted=False)
    assert not timer.begin(1000.0, may_interrupt=True), "it came before the last step ended"


def test_times_are_those_of_the_last_step_and_what_was_thrown_away_is_nobodys() -> None:
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


def test_how_late_steps_are_lately_is_forgotten() -> None:
    clock = Clock(100.0)
    timer = StepTimer(clock, clock, preempt_threshold_s=0.1)
    assert timer.lateness == 1.0

    def step(predicted_ms: float, took_ms: float, *, is_interrupted: bool = False) -> None:
        timer.begin(predicted_ms, may_interrupt=False)
        clock.now_s += took_ms / 1000
        timer.end(is_interrupted=is_interrupted)

    step(1.0, 30.0)
    assert 1.0 < timer.lateness < 1.5, "a short step says little"
    for _ in range(10):
        step(100.0, 250.0)
    assert 2.2 < timer.lateness < 2.5
    step(100.0, 10.0, is_interrupted=True)
    assert 2.2 < timer.lateness < 2.5, "it says nothing of its time"
    clock.now_s += 60.0
    step(100.0, 100.0)
    assert 1.0 < timer.lateness < 1.1
    for _ in range(50):
        step(100.0, 80.0)
    assert timer.lateness == 1.0


Message = Work | Handling | MediaMeasured


class Story:
    """Preparing goes on when the test says so; what comes of it is kept in its order."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._begun = threading.Semaphore(0)
        self._may_end = threading.Semaphore(0)
        self._news = threading.Condition()

    def keep(self, message: Message) -> None:
        with self._news:
            self.messages.append(message)
            self._news.notify()

    def prepare(self, submit: Submit) -> PreparedRequest:
        self._begun.release()
        assert self._may_end.acquire(timeout=DEADLINE_S)
        return PreparedRequest(submit, ())

    def wait_for_one_to_begin(self) -> None:
        assert self._begun.acquire(timeout=DEADLINE_S)

    def let_go_on(self, times: int = 1) -> None:
        self._may_end.release(times)

    def wait_for(self, num: int) -> list[str]:
        with self._news:
            assert self._news.wait_for(lambda: len(self.messages) >= num, DEADLINE_S)
            return [word(message) for message in self.messages]


def word(message: Message) -> str:
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
        story.prepare, CheckedAdapter, measure=MeasuredMedia, announce=story.keep, hand_on=story.keep
    ) as preparation:
        yield story, preparation


def constrained(name: str, priority: Priority = Priority.INTERACTIVE) -> Submit:
    return Submit(request(name, priority=priority, constraint=Constraint(grammar="x")))


def test_only_what_has_a_constraint_waits_and_it_is_announced() -> None:
    with preparing() as (story, preparation):
        preparation.take(constrained("slow"))
        story.wait_for_one_to_begin()
        preparation.take(Submit(request("plain")))
        preparation.take(CancelRequest(id="other"))
        preparation.take(ClearCache())
        assert story.wait_for(4) == ["handling slow", "submit plain", "cancel other", "ClearCache"]
        story.let_go_on()
        assert story.wait_for(6)[4:] == ["handled", "prepared slow"]


def test_a_cancellation_comes_behind_its_request_which_is_not_prepared_if_it_was_not_its_turn() -> None:
    with preparing() as (story, preparation):
        preparation.take(constrained("a"))
        story.wait_for_one_to_begin()
        for command in (CancelRequest(id="a"), constrained("b"), CancelRequest(id="b")):
            preparation.take(command)
        story.let_go_on()
        told = ["handling a", "handled", "prepared a", "cancel a", "refused b", "cancel b"]
        assert story.wait_for(6) == told
        preparation.take(CancelRequest(id="a"))
        assert story.wait_for(7)[6:] == ["cancel a"]


def test_interactive_requests_go_before_batch_work() -> None:
    with preparing() as (story, preparation):
        for name in ("first", "second"):
            preparation.take(constrained(name, Priority.BATCH))
        story.wait_for_one_to_begin()
        preparation.take(constrained("interactive"))
        story.let_go_on(3)
        told = [line for line in story.wait_for(9) if line.startswith("prepared")]
        assert told == ["prepared first", "prepared interactive", "prepared second"]


def test_media_are_measured_while_a_constraint_is_prepared() -> None:
    with preparing() as (story, preparation):
        preparation.take(constrained("first"))
        story.wait_for_one_to_begin()
        preparation.take(MeasureMedia((PictureSize(7, 5), SoundSize(9))))
        measured = ["measured a picture of 7 x 5 pixels", "measured a sound of 9 samples"]
        assert story.wait_for(3) == ["handling first", *measured]
        story.let_go_on(1)


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
