"""The same trace on a real server, beside the simulation of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import NamedTuple

import httpx

from simulation.figures import quantile
from simulation.fleet import Plan, simulate
from simulation.turns import Texts, Turn, prompts

_FIRST_TOKEN = 300
"""Behind the control tokens of the vocabularies that are tried."""
_PATIENCE_S = 600.0


class Answered(NamedTuple):
    first_s: float
    """From its sending to its first token."""
    whole_s: float
    num_output: int
    num_prompt: int
    num_cached: int


class Summary(NamedTuple):
    """What is compared."""

    ttft_p50_s: float
    ttft_p95_s: float
    latency_p50_s: float
    latency_p95_s: float
    hit_rate: float
    seconds: float
    """From the first request to the last answer's end."""


def summary(answers: Sequence[Answered], seconds: float) -> Summary:
    firsts, wholes = [one.first_s for one in answers], [one.whole_s for one in answers]
    return Summary(
        quantile(firsts, 0.5),
        quantile(firsts, 0.95),
        quantile(wholes, 0.5),
        quantile(wholes, 0.95),
        sum(one.num_cached for one in answers) / sum(one.num_prompt for one in answers),
        seconds,
    )


def simulated(plan: Plan, turns: Sequence[Turn]) -> Summary:
    outcome = simulate(plan, turns)
    answers = [
        Answered(
            (one.first_s or 0.0) - one.arrived_s,
            (one.ended_s or 0.0) - one.arrived_s,
            len(one.output),
            len(one.request.tokens),
            one.cached_tokens,
        )
        for one in outcome.requests
    ]
    return summary(answers, outcome.seconds)


async def ask(url: str, model: str, turns: Sequence[Turn], seed: int) -> tuple[list[Answered], float]:
    """Send the first turn of each session at its time; returns the answers and how long all took.

    Later turns are left out: they would begin with an answer that the model has not given.
    """
    texts = Texts(seed)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE_S, limits=limits) as http:
        began = time.perf_counter()
        asked = [asyncio.create_task(_ask(http, model, turn, texts)) for turn in turns]
        answers = await asyncio.gather(*asked)
        return list(answers), time.perf_counter() - began


async def _ask(http: httpx.AsyncClient, model: str, turn: Turn, texts: Texts) -> Answered:
    ((prompt, _),) = prompts([turn], texts)
    await asyncio.sleep(turn.at_s)
    body = {
        "model": model,
        "prompt": [_FIRST_TOKEN + token for token in prompt],
        "max_tokens": turn.output,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"x-priority": "batch" if turn.batch else "interactive"}
    began, first_s, usage = time.perf_counter(), None, None
    async with http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        if answer.is_error:
            raise SystemExit((await answer.aread()).decode())
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            if first_s is None and chunk["choices"]:
                first_s = time.perf_counter() - began
    whole_s = time.perf_counter() - began
    if first_s is None or usage is None:
        raise SystemExit("an answer without a token, or without its usage")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Answered(first_s, whole_s, usage["completion_tokens"], usage["prompt_tokens"], cached)
