"""Resolution of a router's name to a model."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from openai_cpu_server.errors import AdapterNotFound
from openai_cpu_server.models.registry import Ability, ChosenModel, ModelRegistry, choose_able
from openai_cpu_server.models.routing.decide import RouteDecision, RouteReason, RouterInput
from openai_cpu_server.models.routing.options import Cascade
from openai_cpu_server.models.routing.router import TO_BE_JUDGED, ModelRouter, RouterCaller


class RoutedCall(NamedTuple):
    router: str
    chosen: ChosenModel
    reason: RouteReason
    why: str
    """Reasons of all routers passed."""
    cascade: Cascade | None = None
    larger: str | None = None
    """Model to ask if the small one's answer is not good enough."""

    def after(self, judged: RouteDecision, chosen: ChosenModel) -> RoutedCall:
        why = f"{self.why.removesuffix(TO_BE_JUDGED)}{judged.why}"
        return RoutedCall(self.router, chosen, judged.reason, why)


async def follow(
    models: ModelRegistry, router: ModelRouter, facts: RouterInput, caller: RouterCaller, name: str
) -> RoutedCall:
    """Permission for a router includes its targets. Raises a target's ModelNotFound, WrongModelKind,
    EngineUnavailable."""
    reasons: list[str] = []
    while True:
        decision = await router.decide(
            facts,
            caller,
            model_of=lambda name: models.choose(name, None).model,
            count=partial(_count, models, router),
        )
        reasons.append(f"{decision.route}: {decision.why}")
        target = router.options.routes[decision.route]
        following = models.router(target, None)
        if following is None:
            return _routed(models, router, decision, target, name, "; ".join(reasons))
        router = following


def _routed(
    models: ModelRegistry, router: ModelRouter, decision: RouteDecision, target: str, name: str, why: str
) -> RoutedCall:
    cascade = router.options.way
    if not isinstance(cascade, Cascade) or decision.reason is not RouteReason.SURE:
        return RoutedCall(name, choose_able(models, target, None, Ability.GENERATE), decision.reason, why)
    larger = router.options.routes[cascade.large]
    try:
        chosen = choose_able(models, target, None, Ability.GENERATE)
    except AdapterNotFound as error:  # it was deleted while the server ran
        chosen = choose_able(models, larger, None, Ability.GENERATE)
        return RoutedCall(name, chosen, RouteReason.FAILED, f"{why.removesuffix(TO_BE_JUDGED)}{error}")
    return RoutedCall(name, chosen, decision.reason, why, cascade, larger)


def _count(models: ModelRegistry, router: ModelRouter, facts: RouterInput) -> int:
    """Use the default route's tokenizer."""
    target = router.options.routes[router.options.otherwise]
    while (following := models.router(target, None)) is not None:
        target = following.options.routes[following.options.otherwise]
    tokenizer = models.choose(target, None).model.tokenizer
    read = tokenizer.encode_all(facts.texts, add_special=False, parse_special=False)
    return facts.num_token_ids + sum(map(len, read))
