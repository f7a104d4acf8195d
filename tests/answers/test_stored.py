"""Answers as bytes, and corrupt ones."""

from __future__ import annotations

import math

import msgspec
import pytest

from openai_cpu_server.answers.cache import CorruptAnswer, is_good, packed_answer, unpacked_answer
from openai_cpu_server.contract.messages import Finish, FinishReason, TokenEvent
from openai_cpu_server.contract.step import TokenLogprob
from tests.answers.questions import answer, request

BOTH = (request(0), request(1))


def test_a_stored_answer_has_new_ids_and_only_cached_tokens() -> None:
    requests = (request(0, id="new/0"), request(1, id="new/1"))
    events = unpacked_answer(packed_answer(answer("ab", "c"), BOTH), requests)
    assert [(event.id, event.text) for event in events if not event.finish] == [
        ("new/0", "a"),
        ("new/0", "b"),
        ("new/1", "c"),
    ]
    ends = [event.finish for event in events if event.finish]
    assert ends == [
        Finish(reason=FinishReason.STOP, output_tokens=number, cached_tokens=5) for number in (2, 1)
    ]


def test_log_probabilities_are_stored_too() -> None:
    scores = (TokenLogprob(5, -0.5, ((5, -0.5), (6, -math.inf))),)
    end = Finish(reason=FinishReason.STOP, output_tokens=1)
    events = [TokenEvent(id="call/0", tokens=(5,), text="x", logprobs=scores, finish=end)]
    assert unpacked_answer(packed_answer(events, BOTH[:1]), BOTH[:1])[0].logprobs == scores


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\x00",
        b"no msgpack",
        packed_answer(answer("ab", "c"), BOTH)[:-3],
        msgspec.msgpack.encode([]),
        packed_answer(answer("ab"), BOTH),
        packed_answer([*answer("ab", "c"), *answer("d")], BOTH),
        packed_answer(answer("a", "b", reason=FinishReason.CANCELLED), BOTH),
        msgspec.msgpack.encode([(2, answer("")[0])]),
    ],
)
def test_an_incomplete_answer_is_corrupt(stored: bytes) -> None:
    with pytest.raises(CorruptAnswer):
        unpacked_answer(stored, BOTH)


def test_only_ends_by_the_client_or_the_model_are_stored() -> None:
    def good(reason: FinishReason, limit: int) -> bool:
        return is_good(Finish(reason=reason, output_tokens=1), output_limit=limit)

    assert good(FinishReason.STOP, 0)
    assert good(FinishReason.LENGTH, 8)
    assert not good(FinishReason.LENGTH, 0)
    assert not good(FinishReason.CANCELLED, 8)
    assert not good(FinishReason.ERROR, 8)


def test_the_work_of_the_model_is_not_reported_again() -> None:
    work = Finish(
        reason=FinishReason.STOP,
        output_tokens=1,
        forced_tokens=2,
        cached_tokens=3,
        preemptions=4,
        interruptions=5,
        padded_tokens=6,
        drafted_tokens=7,
        accepted_tokens=8,
    )
    events = unpacked_answer(packed_answer(answer("a", finish=work), BOTH[:1]), BOTH[:1])
    assert events[-1].finish == Finish(reason=FinishReason.STOP, output_tokens=1, cached_tokens=5)
