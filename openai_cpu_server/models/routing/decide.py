"""Pure decisions: routes, and verdicts on a small model's answers."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from openai_cpu_server.contract.messages import FinishReason
from openai_cpu_server.models.routing.options import Cascade, Rule, Shares

Embeddings = npt.NDArray[np.float32]
_HASHED = 2**64


class RouterInput(msgspec.Struct, frozen=True, kw_only=True):
    texts: tuple[str, ...]
    request: str
    """Last user message."""
    num_token_ids: int = 0
    """Prompt tokens sent as ids."""
    max_tokens: int | None
    has_tools: bool
    has_schema: bool
    stream: bool
    user: str
    key: str


class RouteReason(enum.Enum):
    """Values are labels of metrics."""

    RULE = "rule"
    CLASSIFIED = "classified"
    SIMILAR = "similar"
    SHARE = "share"
    OTHERWISE = "otherwise"
    UNAVAILABLE = "unavailable"
    """The deciding model was too late."""
    SURE = "sure"
    UNSURE = "unsure"
    CUT = "cut"
    """An answer of a required form was cut at its limit."""
    STREAM = "stream"
    TOO_LONG = "too_long"
    """The small model's context is too short."""
    FAILED = "failed"


class RouteDecision(msgspec.Struct, frozen=True):
    route: str
    reason: RouteReason
    why: str


def by_rules(
    rules: Sequence[Rule], facts: RouterInput, num_tokens: Callable[[], int]
) -> tuple[int, Rule] | None:
    """Return the first rule that holds, numbered from 1."""
    for number, rule in enumerate(rules, start=1):
        if _holds(rule, facts, num_tokens):
            return number, rule
    return None


def _holds(rule: Rule, facts: RouterInput, num_tokens: Callable[[], int]) -> bool:
    if rule.tools is not None and rule.tools != facts.has_tools:
        return False
    if rule.schema is not None and rule.schema != facts.has_schema:
        return False
    if rule.max_tokens_over is not None and (facts.max_tokens or 0) <= rule.max_tokens_over:
        return False
    return rule.prompt_tokens_over is None or num_tokens() > rule.prompt_tokens_over


def by_share(shares: Shares, draw: float) -> str:
    """`draw`: in [0, 1)."""
    left = draw * sum(weight for _, weight in shares.weights)
    taken = [(route, weight) for route, weight in shares.weights if weight > 0]
    for route, weight in taken:
        left -= weight
        if left < 0:
            return route
    return taken[-1][0]


def sticky_draw(router: str, label: str) -> float:
    """Return a number in [0, 1) for the router and label."""
    digest = hashlib.sha256(f"{router}\0{label}".encode()).digest()
    return min(int.from_bytes(digest[:8], "big") / _HASHED, 1 - 2**-53)


def nearest_example(examples: Embeddings, text: Embeddings) -> tuple[int, float]:
    norms = np.linalg.norm(examples, axis=1) * np.linalg.norm(text)
    similarities = (examples @ text.reshape(-1)) / np.maximum(norms, 1e-12)
    index = int(np.argmax(similarities))
    return index, float(similarities[index])


class JudgedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    logprobs: tuple[float, ...]
    finish: FinishReason
    has_form: bool
    """The answer had to be JSON or of another form."""


def verdict(cascade: Cascade, answers: list[JudgedAnswer]) -> RouteDecision:
    """Choose the small route if all its answers are good enough."""
    if any(answer.has_form and answer.finish is FinishReason.LENGTH for answer in answers):
        return RouteDecision(cascade.large, RouteReason.CUT, "the answer was cut")
    worst = min(sum(one.logprobs) / len(one.logprobs) if one.logprobs else float("-inf") for one in answers)
    why = f"mean_logprob={worst:.2f}"
    if worst < cascade.mean_logprob:
        return RouteDecision(cascade.large, RouteReason.UNSURE, why)
    return RouteDecision(cascade.small, RouteReason.SURE, why)
