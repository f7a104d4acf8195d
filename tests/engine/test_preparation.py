"""How commands pass the thread that prepares constraints, and what it says of that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from openai_cpu_server.contract.media import MeasuredMedia, PictureSize, SoundSize
from openai_cpu_server.contract.messages import (
    CancelRequest,
    ClearCache,
    Handling,
    MeasureMedia,
    MediaMeasured,
    Submit,
)
from openai_cpu_server.contract.request import Constraint, Priority
from openai_cpu_server.engine.base import CheckedAdapter, PreparedRequest, RefusedRequest, Work
from openai_cpu_server.engine.loop import Inbox
from openai_cpu_server.engine.preparation import Preparation
from tests.scheduler.driver import request
from tests.waiting import DEADLINE_S

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
        """So many messages, as words."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.messages) >= num, DEADLINE_S)
            return [word(message) for message in self.messages]


def word(message: Message) -> str:
    match message:
        case Handling(id=None):
            return "handled"
        case Handling(id=name):
            return f"handling {name}"
        case PreparedRequest(submit=submit) | RefusedRequest(submit=submit):
            return f"{type(message).__name__.removesuffix('Request').lower()} {submit.request.id}"
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
