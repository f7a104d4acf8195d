"""One router: it decides for each request which of its routes is taken."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from openai_cpu_server.errors import ServerError
from openai_cpu_server.models.routing.asking import ExampleRows, Questioner, classified, embedded
from openai_cpu_server.models.routing.decide import (
    Asked,
    Decision,
    Reason,
    by_rules,
    by_share,
    nearest,
    sticky_draw,
)
from openai_cpu_server.models.routing.options import (
    Cascade,
    Classifier,
    Examples,
    RouterOptions,
    Rules,
    Shares,
    Stickiness,
    WhenStreaming,
)
from openai_cpu_server.models.served import ServedModel

ModelOf = Callable[[str], ServedModel]
"""The model of a name. Raises ServerError."""
CountTokens = Callable[[Asked], int]
TO_BE_JUDGED = "to be judged"


class Router:
    """Its decisions belong to one event loop's thread. They never fail: what cannot decide does not."""

    def __init__(self, options: RouterOptions) -> None:
        self.options = options
        self.created = int(time.time())
        self._examples = ExampleRows(options.way) if isinstance(options.way, Examples) else None

    @property
    def names(self) -> tuple[str, ...]:
        return self.options.names

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def cascade(self) -> Cascade | None:
        return self.options.way if isinstance(self.options.way, Cascade) else None

    async def decide(
        self, asked: Asked, who: Questioner, *, model_of: ModelOf, count: CountTokens
    ) -> Decision:
        """A cascade decides for its small route where that is to be tried."""
        way = self.options.way
        if isinstance(way, Rules):
            return await asyncio.to_thread(self._by_rules, way, asked, count)
        if isinstance(way, Shares):
            return self._by_share(way, asked)
        if isinstance(way, Cascade):
            return _begin(way, asked)
        try:
            return await asyncio.wait_for(self._by_asking(way, asked, who, model_of), way.timeout_s)
        except (ServerError, asyncio.TimeoutError) as error:
            reason = str(error) or f"no answer within {way.timeout_s:g} s"
            return Decision(self.options.otherwise, Reason.UNAVAILABLE, f"{way.model}: {reason}")

    def _by_rules(self, way: Rules, asked: Asked, count: CountTokens) -> Decision:
        found = by_rules(way.rules, asked, lambda: count(asked))
        if found is None:
            return self._otherwise("no rule holds")
        number, rule = found
        return Decision(rule.route, Reason.RULE, f"rule {number}")

    def _by_share(self, way: Shares, asked: Asked) -> Decision:
        label = {Stickiness.USER: asked.user, Stickiness.KEY: asked.key, Stickiness.NOBODY: ""}[way.sticky]
        draw = sticky_draw(self.name, label) if label else random.random()
        return Decision(by_share(way, draw), Reason.SHARE, "share" + (", sticky" if label else ""))

    async def _by_asking(
        self, way: Classifier | Examples, asked: Asked, who: Questioner, model_of: ModelOf
    ) -> Decision:
        if not asked.request:
            return self._otherwise("there is no text")
        model = model_of(way.model)
        if isinstance(way, Examples):
            return await self._by_example(way, asked, who, model)
        route = await classified(model, way, tuple(self.options.routes), asked.request, who)
        if route not in self.options.routes:
            return self._otherwise(f"{way.model} has named no route")
        return Decision(route, Reason.CLASSIFIED, f"{way.model} says so")

    async def _by_example(self, way: Examples, asked: Asked, who: Questioner, model: ServedModel) -> Decision:
        assert self._examples is not None
        examples = await self._examples.of(model)
        index, similarity = nearest(examples, await embedded(model, (asked.request,), who))
        if similarity < way.least_similarity:
            return self._otherwise(f"similarity={similarity:.2f}")
        route = way.texts[index][0]
        return Decision(route, Reason.SIMILAR, f"example of '{route}', similarity={similarity:.2f}")

    def _otherwise(self, why: str) -> Decision:
        return Decision(self.options.otherwise, Reason.OTHERWISE, why)


def _begin(way: Cascade, asked: Asked) -> Decision:
    if asked.stream and way.when_streaming is WhenStreaming.LARGE:
        return Decision(way.large, Reason.STREAM, "a stream")
    if asked.max_tokens == 0:
        return Decision(way.large, Reason.OTHERWISE, "there is no output to judge")
    return Decision(way.small, Reason.SURE, TO_BE_JUDGED)
