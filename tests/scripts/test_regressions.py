"""`scripts/regress.py`: how outputs are compared, and measurements that take no time."""

from __future__ import annotations

import pytest
from bench.asking import ScoredToken
from regressions import schedule
from regressions.pool_pressure import Verdict, compare, margin_shifts
from regressions.simulated import loads

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.scheduler.cost_model import CostModel

pytestmark = pytest.mark.thorough


def token(text: str, logprob: float, **others: float) -> ScoredToken:
    return ScoredToken(text, logprob, {text: logprob, **others})


def test_greedy_outputs_are_the_same_nearly_tied_or_different() -> None:
    a = [token("x", -1.0), token("a", -1.0, b=-1.1), token("p", -1.0)]
    tied = [token("x", -1.0), token("b", -1.0, a=-1.3), token("q", -1.0)]
    far = [token("x", -1.0), token("b", -1.0, a=-1.9)]
    assert compare(a, a, near_tie=0.0).verdict is Verdict.SAME
    found = compare(a, tied, near_tie=0.5)
    assert (found.verdict, found.position) == (Verdict.NEAR_TIE, 1)
    assert found.gap == pytest.approx(0.3), "the larger gap of the two runs"
    assert compare(a, tied, near_tie=0.2).verdict is Verdict.DIFFERENT
    for other in (far, [token("x", -1.0), token("c", -1.0)], a[:2]):
        assert compare(a, other, near_tie=0.5).verdict is Verdict.DIFFERENT
    assert list(margin_shifts(a, tied)) == pytest.approx([0.4]), "the same two candidates compare"


def test_schedules_are_computed_without_an_engine() -> None:
    steps = schedule.measured(5, 0, running=4, waiting=6)
    assert [ms > 0 for both in steps for ms in both] == [True] * 10
    quotes, curve = loads()["quotes"], CostModel.guess().curve
    rate = quotes.serve(options=EngineOptions(model_path=""), told=curve, step_ms=lambda step, cells: 10.0)
    assert {len(client.token_times) for client in quotes.streams} == {96}
    assert rate > 2 * 1000 / 12, "drafts are right more often than not"
