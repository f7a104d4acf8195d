"""`scripts/regress.py`: what its workloads ask and how they judge; small ones against the real server."""

from __future__ import annotations

import pytest
from bench.asking import Priority, ScoredToken
from bench.bench import Bench
from bench.dialect import OURS
from bench.prompts import random_tokens
from regressions import neighbours, pool_pressure, schedule
from regressions.pool_pressure import Verdict, compare, margin_shifts
from regressions.simulated import loads
from regressions.speculation_tasks import conversations, draft_model, extracting, tasks

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.scheduler.cost_model import CostModel
from tests.tiny_model import SCRIPTS, tiny_model_path

pytestmark = pytest.mark.thorough


def test_pool_pressure_begins_with_batch_work() -> None:
    prompts = [random_tokens(300, i) for i in range(pool_pressure.FULL.requests)]
    asks, offsets = (
        pool_pressure.asks(pool_pressure.FULL, prompts),
        pool_pressure.arrivals(pool_pressure.FULL),
    )
    assert {ask.max_tokens for ask in asks} == {200}
    assert {ask.max_tokens for ask in pool_pressure.beginnings(asks)} == {32}
    at_once = [ask for ask, offset in zip(asks, offsets, strict=True) if offset == 0]
    assert len(at_once) == 16
    assert {ask.priority for ask in at_once} == {Priority.BATCH}
    assert {ask.priority for ask in asks[16:]} == {Priority.INTERACTIVE}
    assert offsets[16:19] == [2.0, 4.0, 6.0]


def token(text: str, logprob: float, **others: float) -> ScoredToken:
    return ScoredToken(text, logprob, {text: logprob, **others})


def test_greedy_outputs_are_the_same_nearly_tied_or_different() -> None:
    a = [token("x", -1.0), token("a", -1.0, b=-1.1), token("p", -1.0)]
    tied = [token("x", -1.0), token("b", -1.0, a=-1.3), token("q", -1.0)]
    far = [token("x", -1.0), token("b", -1.0, a=-1.9)]
    unknown = [token("x", -1.0), token("c", -1.0)]
    assert compare(a, a, near_tie=0.0).verdict is Verdict.SAME
    found = compare(a, tied, near_tie=0.5)
    assert (found.verdict, found.position) == (Verdict.NEAR_TIE, 1)
    assert found.gap == pytest.approx(0.3), "the larger gap of the two runs"
    assert compare(a, tied, near_tie=0.2).verdict is Verdict.DIFFERENT
    for other in (far, unknown, a[:2]):
        assert compare(a, other, near_tie=0.5).verdict is Verdict.DIFFERENT


def test_rounding_is_how_far_the_margin_between_two_candidates_moves() -> None:
    one = [token("x", -1.0, y=-3.0), token("a", -1.0, b=-1.1), token("p", -1.0, q=-2.0)]
    other = [token("x", -1.2, y=-3.0), token("b", -1.0, a=-1.3), token("r", -1.0, q=-2.0)]
    assert list(margin_shifts(one, one)) == [0.0, 0.0, 0.0]
    assert list(margin_shifts(one, other)) == pytest.approx([0.2, 0.4]), "what follows continues other texts"
    unknown = [token("x", -1.0, z=-3.0), token("a", -1.0, b=-1.1)]
    assert list(margin_shifts(one, unknown)) == [0.0], "only the same two candidates compare"
    assert list(margin_shifts([token("x", -1.0)], one)) == []


def test_conversations_repeat_and_are_for_models_that_talk() -> None:
    demo = SCRIPTS.parent / "model_assets" / "demo.gguf"
    asked = conversations(extracting, 1, 4, 0.8)
    assert asked == conversations(extracting, 1, 4, 0.8)
    assert all(ask not in asked for ask in conversations(extracting, 0, 4, 0.8))
    body = OURS.body(asked[0])
    assert ("prompt" not in body, "ignore_eos" not in body, asked[0].path) == (
        True,
        True,
        "/v1/chat/completions",
    )
    assert asked[0].messages[-1]["role"] == "user"
    assert len(tasks(demo)) > len(tasks(tiny_model_path()))
    assert draft_model(demo) == demo.with_name("demo-draft.gguf")
    assert draft_model(tiny_model_path()) is None


def test_a_scheduler_whose_steps_nobody_executes_is_timed() -> None:
    steps = schedule.measured(5, 0, running=4, waiting=6)
    assert len(steps) == 5
    assert all(ms > 0 for both in steps for ms in both)


def test_simulated_clients_get_all_their_tokens() -> None:
    quotes = loads()["quotes"]
    told = CostModel.guess().curve
    rate = quotes.serve(options=EngineOptions(model_path=""), told=told, step_ms=lambda step, cells: 10.0)
    assert {len(client.token_times) for client in quotes.streams} == {96}
    assert rate > 2 * 1000 / 12, "drafts are right more often than not"


@pytest.mark.slow
@pytest.mark.native
def test_a_model_beside_another_is_measured() -> None:
    result = neighbours.workload(
        Bench(
            model=tiny_model_path(),
            rounds=1,
            is_quick=True,
            say=lambda line: None,
        )
    )
    assert all(figure.rounds.median > 0 for figure in result.figures)
    assert [goal.is_met is None for goal in result.goals] == [False, False]
