"""Outputs that repeat themselves: which of them are ended, at which token, and independently of all else."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import cycle, islice

import msgspec
import pytest

from openai_cpu_server.contract.messages import CancelRequest, FinishReason
from openai_cpu_server.contract.request import Constraint, GenerationRequest, Sampling
from openai_cpu_server.engine.output import LONGEST_PERIOD, LOOP_TOKENS, LoopDetector
from tests.engine.driver import OPTIONS, Engine
from tests.fakes import FAKE_INFO, SPECULATION, FakeBackend
from tests.scheduler.driver import request

MOST = 3000


def end_of(tokens: Iterable[int]) -> int | None:
    """Number of tokens after which the output is ended, or None."""
    detector = LoopDetector()
    return next((count for count, token in enumerate(tokens, 1) if detector.read(token)), None)


def repeated(passage: Sequence[int], num_tokens: int = MOST) -> list[int]:
    return list(islice(cycle(passage), num_tokens))


@pytest.mark.parametrize("period", [1, 2, 3, 7, 64, 100, 255, LONGEST_PERIOD])
@pytest.mark.parametrize("num_before", [0, 5, 700])
def test_a_passage_that_has_filled_a_thousand_tokens_is_ended_soon(period: int, num_before: int) -> None:
    rng = random.Random(period)
    before = [rng.randrange(1000, 2000) for _ in range(num_before)]
    passage = rng.sample(range(1000), period)
    end = end_of([*before, *repeated(passage)])
    assert end is not None
    assert 0 <= end - (num_before + period + LOOP_TOKENS) < 64


def test_the_largest_token_ids_are_read() -> None:
    assert end_of([0x10FFFF] * MOST) is not None


def rows(*, differ: bool) -> list[int]:
    """Return a table of rows of 20 tokens, which differ in one number or are equal."""
    cells = list(range(100, 119))
    return [token for row in range(100) for token in (*cells, row if differ else 0)]


@pytest.mark.parametrize(
    "tokens",
    [
        repeated([7], LOOP_TOKENS),
        repeated(range(16), LOOP_TOKENS),
        [*repeated([7], 1000), 8, *repeated([7], 1000)],
        rows(differ=True),
        rows(differ=False)[: 20 * 50],
        repeated(range(LONGEST_PERIOD + 1)),
        random.Random(1).choices(range(4), k=MOST),
        [token for number in range(600) for token in (1, 2, 3, number + 10, 4)],
    ],
)
def test_ordinary_repetition_is_not_a_loop(tokens: Sequence[int]) -> None:
    assert end_of(tokens) is None


# -- in the engine -----------------------------------------------------------------------------------------

PASSAGE = tuple(2 + byte for byte in b"and so on, ")


def stuck(tokens: list[int]) -> int:
    """Choose 30 numbers, and then the same passage over and over."""
    count = len(tokens) - 4
    return 300 + count if count < 30 else PASSAGE[(count - 30) % len(PASSAGE)]


def new_engine(speculation: str = "off") -> Engine:
    options = msgspec.structs.replace(OPTIONS, **SPECULATION[speculation])
    return Engine(options, FakeBackend(FAKE_INFO, choose=stuck))


def loop_request(name: str = "a", **more: object) -> GenerationRequest:
    return request(name, output=MOST, **{"ends_loops": True, **more})


@pytest.fixture(scope="module")
def reference() -> Sequence[int]:
    engine = new_engine()
    engine.serve(loop_request())
    finish = engine.finish("a")
    assert (finish.reason, finish.is_loop) == (FinishReason.LENGTH, True)
    tokens = engine.whole("a").tokens
    assert LOOP_TOKENS < len(tokens) == finish.output_tokens < LOOP_TOKENS + 200
    return tokens


def test_an_output_is_the_same_up_to_its_end(reference: Sequence[int]) -> None:
    engine = new_engine()
    engine.serve(loop_request(ends_loops=False))
    finish = engine.finish("a")
    assert (finish.reason, finish.is_loop, finish.output_tokens) == (FinishReason.LENGTH, False, MOST)
    assert engine.whole("a").tokens[: len(reference)] == reference


@pytest.mark.parametrize("speculation", sorted(SPECULATION))
def test_drafts_and_other_requests_do_not_move_the_end(reference: Sequence[int], speculation: str) -> None:
    engine = new_engine(speculation)
    engine.serve(loop_request(), loop_request("b"), request("c", output=50))
    assert engine.whole("a").tokens == engine.whole("b").tokens == reference


@pytest.mark.parametrize("num_sent", [1, 500, 1023, 1024, 1088, -1, 0])
def test_a_crash_does_not_move_the_end(reference: Sequence[int], num_sent: int) -> None:
    """With 0 all tokens were sent, and only the last event was lost."""
    output = reference[: num_sent or None]
    engine = new_engine()
    engine.serve(loop_request(), output=output)
    assert (*output, *engine.whole("a").tokens) == reference
    assert engine.finish("a").is_loop


def test_the_minimum_of_tokens_is_not_cut() -> None:
    engine = new_engine()
    engine.serve(loop_request(sampling=Sampling(seed=1, min_tokens=2000)))
    assert 2000 < engine.finish("a").output_tokens < 2100


@pytest.mark.parametrize(("sign", "is_loop"), [("?", True), ("0", False)])
def test_a_loop_within_a_grammar_is_ended_unless_the_grammar_demands_it(sign: str, is_loop: bool) -> None:
    engine = new_engine()
    engine.serve(loop_request(constraint=Constraint(grammar=sign * (LOOP_TOKENS + 200))))
    assert engine.finish("a").is_loop is is_loop


def test_a_cancelled_request_is_not_a_loop() -> None:
    engine = new_engine()
    engine.submit(loop_request())
    engine.step()
    engine.core.handle(CancelRequest("a"))
    engine.run()
    assert not engine.finish("a").is_loop
