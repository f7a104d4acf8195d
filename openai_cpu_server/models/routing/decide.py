"""What is asked for, which route that means, and whether a small model's answers are good enough. Pure."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from openai_cpu_server.contract.messages import FinishReason
from openai_cpu_server.models.routing.options import Cascade, Rule, Shares

Rows = npt.NDArray[np.float32]
_HASHED = 2**64


class RouterInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a router may know of a request."""

    texts: tuple[str, ...]
    """All that the prompt says."""
    request: str
    """What it says last: the last user's text."""
    given_tokens: int = 0
    """Tokens that the prompt has beside its texts, given as ids."""
    max_tokens: int | None
    has_tools: bool
    has_schema: bool
    stream: bool
    user: str
    """Labels of the one who asks, for routes that stick."""
    key: str


class RouteReason(enum.Enum):
    """Why a route was taken, in a word for metrics."""

    RULE = "rule"
    CLASSIFIED = "classified"
    SIMILAR = "similar"
    SHARE = "share"
    OTHERWISE = "otherwise"
    UNAVAILABLE = "unavailable"
    """What decides could not be had in time."""
    SURE = "sure"
    """A cascade's small model has answered well enough."""
    UNSURE = "unsure"
    CUT = "cut"
    """Its answer has a form, and was cut at its limit of tokens."""
    STREAM = "stream"
    TOO_LONG = "too_long"
    """The prompt does not fit the small model."""
    FAILED = "failed"
    """The small model could not answer."""


class RouteDecision(msgspec.Struct, frozen=True):
    route: str
    reason: RouteReason
    why: str
    """The same for people, in one line."""


def by_rules(
    rules: Sequence[Rule], asked: RouterInput, num_tokens: Callable[[], int]
) -> tuple[int, Rule] | None:
    """The first rule that holds, and its number from 1. `num_tokens` counts those of the prompt."""
    for number, rule in enumerate(rules, start=1):
        if _holds(rule, asked, num_tokens):
            return number, rule
    return None


def _holds(rule: Rule, asked: RouterInput, num_tokens: Callable[[], int]) -> bool:
    if rule.tools is not None and rule.tools != asked.has_tools:
        return False
    if rule.schema is not None and rule.schema != asked.has_schema:
        return False
    if rule.max_tokens_over is not None and (asked.max_tokens or 0) <= rule.max_tokens_over:
        return False
    return rule.prompt_tokens_over is None or num_tokens() > rule.prompt_tokens_over


def by_share(shares: Shares, draw: float) -> str:
    """The route in whose part of all weights `draw` lies, which is at least 0 and below 1."""
    left = draw * sum(weight for _, weight in shares.weights)
    taken = [(route, weight) for route, weight in shares.weights if weight > 0]
    for route, weight in taken:
        left -= weight
        if left < 0:
            return route
    return taken[-1][0]


def sticky_draw(router: str, label: str) -> float:
    """At least 0 and below 1: always the same for the same label, and another for another router."""
    digest = hashlib.sha256(f"{router}\0{label}".encode()).digest()
    return min(int.from_bytes(digest[:8], "big") / _HASHED, 1 - 2**-53)


def nearest(examples: Rows, text: Rows) -> tuple[int, float]:
    """The row that is most similar to the text's one row, and the cosine of their angle."""
    norms = np.linalg.norm(examples, axis=1) * np.linalg.norm(text)
    similarities = (examples @ text.reshape(-1)) / np.maximum(norms, 1e-12)
    index = int(np.argmax(similarities))
    return index, float(similarities[index])


class JudgedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What counts of one answer."""

    logprobs: tuple[float, ...]
    """One for each of its tokens."""
    finish: FinishReason
    has_form: bool
    """It had to be JSON, or of another form."""


def verdict(cascade: Cascade, answers: list[JudgedAnswer]) -> RouteDecision:
    """The small route if all answers are good enough, else the large one."""
    if any(answer.has_form and answer.finish is FinishReason.LENGTH for answer in answers):
        return RouteDecision(cascade.large, RouteReason.CUT, "the answer was cut")
    worst = min(map(_mean, answers))
    said = f"mean_logprob={worst:.2f}"
    if worst < cascade.mean_logprob:
        return RouteDecision(cascade.large, RouteReason.UNSURE, said)
    return RouteDecision(cascade.small, RouteReason.SURE, said)


def _mean(answer: JudgedAnswer) -> float:
    """An answer without tokens is the worst."""
    if not answer.logprobs:
        return float("-inf")
    return sum(answer.logprobs) / len(answer.logprobs)
