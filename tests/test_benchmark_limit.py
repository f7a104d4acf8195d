"""The benchmark's bare loop: what steps a piece of work comes to, and that they can be computed."""

from __future__ import annotations

from collections import Counter

import pytest
from bench.limit.limit import Limit, LimitFailed
from bench.limit.shapes import Prices, Shape, latencies, passes, predict_s, prefix_sizes, shapes
from bench.limit.work import Policy, Request, Work

from tests.tiny_model import tiny_model_path

pytestmark = pytest.mark.thorough

STAIRS = Prices([(1, 10.0), (8, 50.0), (12, 60.0), (16, 40.0), (32, 100.0), (64, 200.0)])
LINE = Prices([(1, 1.0), (64, 64.0)])
FLAT = Prices([(1, 10.0), (64, 10.0)])
MIXED, APART = Policy(size=16, mixes=True), Policy(size=16, mixes=False)


def test_prices_lie_between_what_was_measured() -> None:
    assert (STAIRS.ms(8), STAIRS.ms(10), STAIRS.ms(128)) == (50.0, 55.0, 400.0)


def test_a_larger_step_may_be_the_cheapest() -> None:
    assert [STAIRS.cheapest(n) for n in (1, 8, 12, 16, 17, 64)] == [1, 16, 16, 16, 17, 64]


def test_waits_are_told_as_clients_feel_them() -> None:
    """Two clients, three requests of 16 + 2 tokens: the third is taken when the first is answered."""
    work = Work(clients=2, requests=(Request(prompt=16, output=2),) * 3)
    planned = list(shapes(work, APART, LINE))
    assert [len(shape.parts) for shape in planned] == [1, 1, 2, 1, 1]
    first, gaps = latencies(planned, [1.0, 1.0, 0.5, 1.0, 0.25], begun_s=3.0)
    assert first == [4.0, 5.0, 1.0]
    assert gaps == [1.5, 0.5, 0.25]


@pytest.mark.parametrize("policy", [MIXED, APART, Policy(size=16, mixes=False, readers=2)])
@pytest.mark.parametrize("shared", [0, 5])
def test_every_token_is_computed_once_and_in_order(policy: Policy, shared: int) -> None:
    work = Work(clients=3, shared=shared, requests=tuple(Request(7 * n + 1, n + 1) for n in range(5)))
    held: dict[int, int] = {}
    read: Counter[bool] = Counter()
    for shape in shapes(work, policy, LINE):
        for lane in shape.begins:
            assert lane not in held
            held[lane] = shared
        assert 0 < shape.num_tokens <= policy.size
        for part in shape.parts:
            assert part.start == held[part.lane]
            held[part.lane] += part.tokens
            read[part.samples] += 1
        for lane in shape.ends:
            del held[lane]
    assert held == {}
    assert read[True] == work.output_tokens
    assert len(list(shapes(work, policy, LINE))) >= 5


def test_prompts_are_read_beside_those_who_decode_or_before_them() -> None:
    work = Work(clients=2, requests=(Request(2, 3), Request(20, 1)))
    assert tokens(work, MIXED) == [[2, 14], [1, 6], [1]]
    assert tokens(work, APART) == [[2, 14], [6], [1], [1]]


def tokens(work: Work, policy: Policy) -> list[list[int]]:
    return [[part.tokens for part in shape.parts] for shape in shapes(work, policy, LINE)]


def test_steps_are_padded_where_that_is_faster() -> None:
    work = Work(clients=12, requests=(Request(1, 2),) * 12)
    found: list[Shape] = list(shapes(work, MIXED, STAIRS))
    assert [(len(shape.parts), shape.padding) for shape in found] == [(12, 4), (12, 4)]
    assert all(shape.is_decoding for shape in found)


def test_with_cells_apart_neighbours_read_equally_many_tokens() -> None:
    """173-token prompts: never 173 of one beside the first 83 of the next."""
    work = Work(clients=3, requests=(Request(173, 2),) * 3)
    assert tokens(work, apart(256, 1)) == [[173], [173], [173], [1, 1, 1]]
    assert tokens(work, apart(256, 2)) == [[128, 128], [45, 45], [173], [1, 1, 1]]
    assert tokens(work, apart(512, 16)) == [[170, 170, 170], [3, 3, 3], [1, 1, 1]]


@pytest.mark.parametrize("readers", [1, 2, 16])
def test_with_cells_apart_a_step_is_one_pass_while_all_are_busy(readers: int) -> None:
    """Lengths differ, so lanes are filled anew in any order; the last requests leave gaps."""
    work = Work(clients=4, requests=tuple(Request(5 + 7 * n % 11, 9 - 5 * n % 7) for n in range(12)))
    planned = list(shapes(work, apart(16, readers), STAIRS))
    last = max(n for n, shape in enumerate(planned) if shape.begins)
    for shape in planned[:last]:
        lanes = [part.lane for part in shape.parts]
        assert lanes == list(range(lanes[0], lanes[0] + len(lanes)))
        assert len(passes(shape, apart(16, readers))) == 1
    assert {shape.padding for shape in planned} == {0}
    assert sum(part.samples for shape in planned for part in shape.parts) == work.output_tokens


def test_lanes_with_a_gap_between_them_cost_two_passes() -> None:
    work = Work(clients=3, requests=(Request(1, 3), Request(1, 2), Request(1, 3)))
    *_, last = shapes(work, apart(3, 3), LINE)
    assert passes(last, apart(3, 3)) == [1, 1]
    assert passes(last, APART) == [2]
    assert predict_s(work, apart(3, 3), FLAT) > predict_s(work, APART, FLAT)


def apart(size: int, readers: int) -> Policy:
    return Policy(size=size, mixes=False, readers=readers)


def test_a_shared_prefix_costs_once_or_nothing() -> None:
    cold = Work(clients=1, shared=40, requests=(Request(8, 1),))
    warm = Work(clients=1, shared=40, is_warm=True, requests=(Request(8, 1),))
    assert prefix_sizes(cold, STAIRS) == [16, 16, 8], "a token costs least in steps of 16"
    assert predict_s(cold, MIXED, LINE) == pytest.approx(0.048)
    assert predict_s(warm, MIXED, LINE) == pytest.approx(0.008)


@pytest.mark.native
def test_the_bare_loop_computes_it_all() -> None:
    limit = Limit(tiny_model_path(), is_quick=True, say=lambda line: None)
    alone = Work(clients=2, requests=(Request(20, 3),) * 3)
    shared = Work(clients=3, shared=50, is_warm=True, requests=(Request(4, 2),) * 4)
    one, other = limit.measure(alone, shared)
    assert (one.requests, one.output_tokens) == (3, 9)
    assert (other.requests, other.output_tokens) == (4, 8)
    assert one.seconds > 0
    assert one.decode_ms is not None
    assert "weights" in limit.plan(alone)


@pytest.mark.native
def test_a_loop_that_fails_says_why() -> None:
    limit = Limit(tiny_model_path().with_name("nowhere.gguf"), is_quick=True, say=lambda line: None)
    with pytest.raises(LimitFailed, match=r"cannot load .*nowhere"):
        limit.measure(Work(clients=1, requests=(Request(1, 1),)))
