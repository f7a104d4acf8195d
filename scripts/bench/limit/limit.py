"""Runs the bare loop: finds the steps that suit a piece of work best on this machine, and times them."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from bench.failures import Failed
from bench.limit.shapes import Prices, predict_s
from bench.limit.work import Answer, Job, LoopRun, Policy, Trial, Work
from openai_cpu_server.settings import HUGE_PAGES

_SCRIPTS = Path(__file__).resolve().parents[2]
_COMMAND = (sys.executable, "-m", "bench.limit.process")
_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
_QUICK_SIZES = (1, 4, 8, 16, 32, 64, 128, 256)
_REPEATS = 2
_READERS = (1, 2, 4, 16)
"""How many neighbours read together, if each sequence has its own cells."""
_PROMPT_STEPS = (16, 32, 48, 63, 64, 96, 128, 192, 256, 512)
_SAMPLE_TOKENS = 8_000
"""The tokens of the work on which policies are tried.
Fewer tokens, without a second wave of requests, mislead."""

PriceList = tuple[tuple[int, float], ...]


class LimitFailed(Failed):
    """The bare loop failed; the message ends with its last words."""


class _Plan(msgspec.Struct, frozen=True):
    repack: bool
    policy: Policy

    def __str__(self) -> str:
        return f"{'repacked' if self.repack else 'plain'} weights, {self.policy}"


class Limit:
    """The limit for one model. What it finds out serves the next workload, too."""

    def __init__(self, model: Path, *, is_quick: bool, say: Callable[[str], None]) -> None:
        self._model = model
        self._is_quick = is_quick
        self._say = say
        self._price_lists: dict[bool, PriceList] | None = None
        self._plans: dict[Work, _Plan] = {}

    def plan(self, work: Work) -> str:
        """How this work was computed, in words."""
        return str(self._plans[work])

    def measure(self, *works: Work) -> list[LoopRun]:
        """Compute each work under the policy that is best for it. Raises LimitFailed."""
        plans = [self._plan(work) for work in works]
        runs: dict[Work, LoopRun] = {}
        for repack in {plan.repack for plan in plans}:
            mine = [(work, plan) for work, plan in zip(works, plans, strict=True) if plan.repack is repack]
            trials = tuple(Trial(work, plan.policy) for work, plan in mine)
            found = self._run(repack, trials)
            runs |= {work: run for (work, _), run in zip(mine, found, strict=True)}
        return [runs[work] for work in works]

    def _plan(self, work: Work) -> _Plan:
        if work not in self._plans:
            self._plans[work] = self._find_plan(work)
        return self._plans[work]

    def _find_plan(self, work: Work) -> _Plan:
        """Find the best policy by prices, then try the best of each kind,
        because prices do not know of attention."""
        ranked = sorted(self._candidates(work), key=lambda plan: self._predicted_s(work, plan))
        if self._is_quick:
            return ranked[0]
        tried = _best_of_each_kind(ranked)
        sample = _sample(work)
        found = self._run(ranked[0].repack, [Trial(sample, plan.policy) for plan in tried])
        return min(zip(found, tried, strict=True), key=lambda pair: pair[0].seconds)[1]

    def _candidates(self, work: Work) -> Iterator[_Plan]:
        for repack, prices in self._prices().items():
            sizes = [size for size in _PROMPT_STEPS if size <= Prices(prices).largest]
            for size, mixes in itertools.product(sizes, (True, False)):
                yield _Plan(repack, Policy(size=size, mixes=mixes))
            several = [readers for readers in _READERS if readers <= work.clients and not work.shared]
            for size, readers in itertools.product(sizes, several):
                yield _Plan(repack, Policy(size=size, mixes=False, readers=readers))

    def _predicted_s(self, work: Work, plan: _Plan) -> float:
        return predict_s(work, plan.policy, Prices(self._prices()[plan.repack]))

    def _prices(self) -> dict[bool, PriceList]:
        """The prices of steps with plain weights, and with repacked ones."""
        if self._price_lists is None:
            self._say("limit: what steps of the bare loop cost")
            self._price_lists = {repack: self._time_steps(repack) for repack in (False, True)}
        return self._price_lists

    def _time_steps(self, repack: bool) -> PriceList:
        sizes, repeats = (_QUICK_SIZES, 1) if self._is_quick else (_SIZES, _REPEATS)
        job = Job(model=str(self._model), repack=repack, sizes=sizes, repeats=repeats)
        return _answer(job).step_ms

    def _run(self, repack: bool, trials: Sequence[Trial]) -> tuple[LoopRun, ...]:
        prices = self._prices()[repack]
        job = Job(model=str(self._model), repack=repack, step_ms=prices, trials=tuple(trials))
        return _answer(job).runs


def _best_of_each_kind(ranked: Sequence[_Plan]) -> list[_Plan]:
    """The best policy of each kind that is worth trying, with the best plan's weights."""
    best: dict[tuple[bool, bool, bool], _Plan] = {}
    for plan in ranked:
        kind = _kind(plan.policy)
        if plan.repack is ranked[0].repack and kind != _HOPELESS:
            best.setdefault(kind, plan)
    return list(best.values())


_TILE_ROWS = 64
"""ggml attends in tiles of so many rows (its GGML_FA_TILE_Q)."""
_HOPELESS = (True, False, True)
"""One pool, prompts apart, small steps."""


def _kind(policy: Policy) -> tuple[bool, bool, bool]:
    """The kind of a policy: where cells are, what is mixed, and whether attention to prompts uses tiles."""
    tokens_of_one = policy.size // (policy.readers or 1)
    return (policy.unified, policy.mixes, tokens_of_one < _TILE_ROWS)


def _sample(work: Work) -> Work:
    """The first requests, as many as have at most `_SAMPLE_TOKENS` tokens together, but at least two."""
    tokens = itertools.accumulate(request.prompt + request.output for request in work.requests)
    count = max(2, sum(total <= _SAMPLE_TOKENS for total in tokens))
    return msgspec.structs.replace(work, requests=work.requests[:count])


def _answer(job: Job) -> Answer:
    done = subprocess.run(
        _COMMAND,
        input=msgspec.json.encode(job),
        capture_output=True,
        cwd=_SCRIPTS,
        env=HUGE_PAGES | os.environ,  # as our engine
        check=False,
    )
    if done.returncode != 0:
        raise LimitFailed(f"the bare loop: {done.stderr.decode(errors='replace').strip()[-500:]}")
    return msgspec.json.decode(done.stdout, type=Answer)
