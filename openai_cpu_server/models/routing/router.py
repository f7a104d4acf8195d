"""Routers by rules, shares, or a model that names a route or embeds."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
import weakref
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.request import Constraint, GenerationRequest, Priority, Sampling
from openai_cpu_server.errors import ServerError
from openai_cpu_server.models.routing.decide import (
    Embeddings,
    RouteDecision,
    RouteReason,
    RouterInput,
    by_rules,
    by_share,
    nearest_example,
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
from openai_cpu_server.prompt.chat_prompts import Conversation
from openai_cpu_server.prompt.reasoning import switch

_MOST_CHARS = 4000
_UNKNOWN = "[UNK]"
"""WordPiece's token for an unknown word."""
_SPARE_TOKENS = 8
"""Names may be generated in more tokens than they are tokenized to."""


class RouterCaller(msgspec.Struct, frozen=True):
    """Priority of the router's request."""

    priority: Priority
    client: str
    account: str = ""
    group: str = ""


async def classified(
    model: ServedModel, options: Classifier, routes: tuple[str, ...], request: str, caller: RouterCaller
) -> str:
    """Return the named route. Raises ServerError."""
    question = await asyncio.to_thread(_question, model, options, routes, request, caller)
    texts = []
    async with model.engine.generate([question]) as generation:
        async for event in generation:
            texts.append(event.text)
    return "".join(texts).strip()


def _question(
    model: ServedModel, options: Classifier, routes: tuple[str, ...], request: str, caller: RouterCaller
) -> GenerationRequest:
    model.loaded()
    text = options.prompt.replace("{request}", _shortened(request))
    prompt = model.prompts.prompt(
        Conversation(
            messages=[{"role": "user", "content": text}], variables=switch(on=False), skips_thinking=True
        )
    )
    grammar = model.grammars.of_choices(list(routes), "router")
    names = model.tokenizer.encode_all(routes, add_special=False, parse_special=False)
    return GenerationRequest(
        id=f"route-{secrets.token_hex(12)}/0",
        tokens=prompt.tokens,
        boundaries=prompt.boundaries,
        max_tokens=max(map(len, names)) + _SPARE_TOKENS,
        sampling=Sampling(seed=0, temperature=0),
        priority=caller.priority,
        client=caller.client,
        account=caller.account,
        group=caller.group,
        route="route",
        constraint=Constraint(grammar=grammar.lark),
    )


async def embedded(model: ServedModel, texts: tuple[str, ...], caller: RouterCaller) -> Embeddings:
    """Embed texts, cutting long ones. Raises ServerError."""

    def tokenized() -> list[tuple[int, ...]]:
        limit, end = model.loaded().max_input_tokens, model.tokenizer.marks.end
        inputs = [_embedder_tokens(model, _shortened(text)) for text in texts]
        return [one if len(one) <= limit else (*one[: limit - len(end)], *end) for one in inputs]

    return await _rows(model, await asyncio.to_thread(tokenized), caller)


async def embedded_whole(model: ServedModel, text: str, caller: RouterCaller) -> Embeddings | None:
    """Return None for a text that is too long or has words outside the vocabulary. Raises ServerError."""
    if len(text) > _MOST_CHARS:
        return None
    limit = model.loaded().max_input_tokens
    tokens = await asyncio.to_thread(_embedder_tokens, model, text)
    if not 0 < len(tokens) <= limit or _UNKNOWN in model.tokenizer.decode(list(tokens), special=True):
        return None
    return await _rows(model, [tokens], caller)


async def _rows(model: ServedModel, inputs: Sequence[tuple[int, ...]], caller: RouterCaller) -> Embeddings:
    request = EmbedRequest(
        id=f"route-{secrets.token_hex(12)}",
        inputs=tuple(inputs),
        priority=caller.priority,
        client=caller.client,
        group=caller.group,
        route="route",
    )
    async with model.engine.embed(request) as embedding:
        vectors = await embedding.vectors()
    return np.frombuffer(vectors, np.float32).reshape(len(inputs), -1)


def _embedder_tokens(model: ServedModel, text: str) -> tuple[int, ...]:
    return tuple(model.tokenizer.encode(text, add_special=True, parse_special=False))


def _shortened(text: str) -> str:
    """Keep both ends, one of which states a request's intent."""
    if len(text) <= _MOST_CHARS:
        return text
    half = _MOST_CHARS // 2
    return f"{text[:half]}\n...\n{text[-half:]}"


ModelOf = Callable[[str], ServedModel]
"""Function that may raise ServerError."""
CountTokens = Callable[[RouterInput], int]
TO_BE_JUDGED = "to be judged"


class ModelRouter:
    """Decides on one event loop's thread, and never fails."""

    def __init__(self, options: RouterOptions) -> None:
        self.options = options
        self.created = int(time.time())
        self._examples: weakref.WeakKeyDictionary[ServedModel, asyncio.Task[Embeddings]] = (
            weakref.WeakKeyDictionary()
        )
        """Computed once per model."""

    @property
    def name(self) -> str:
        return self.options.name

    async def decide(
        self, facts: RouterInput, caller: RouterCaller, *, model_of: ModelOf, count: CountTokens
    ) -> RouteDecision:
        """Choose a cascade's small route if it is to be tried."""
        way = self.options.way
        if isinstance(way, Rules):
            rule = await asyncio.to_thread(by_rules, way.rules, facts, lambda: count(facts))
            if rule is None:
                return self._otherwise("no rule holds")
            return RouteDecision(rule[1].route, RouteReason.RULE, f"rule {rule[0]}")
        if isinstance(way, Shares):
            labels = {Stickiness.USER: facts.user, Stickiness.KEY: facts.key, Stickiness.NEVER: ""}
            label = labels[way.sticky]
            draw = sticky_draw(self.name, label) if label else random.random()
            why = "share" + (" (sticky)" if label else "")
            return RouteDecision(by_share(way, draw), RouteReason.SHARE, why)
        if isinstance(way, Cascade):
            if facts.stream and way.when_streaming is WhenStreaming.LARGE:
                return RouteDecision(way.large, RouteReason.STREAM, "a stream")
            if facts.max_tokens == 0:
                return RouteDecision(way.large, RouteReason.OTHERWISE, "there is no output to judge")
            return RouteDecision(way.small, RouteReason.SURE, TO_BE_JUDGED)
        try:
            return await asyncio.wait_for(self._by_asking(way, facts, caller, model_of), way.timeout_s)
        except (ServerError, asyncio.TimeoutError) as error:
            reason = str(error) or f"no answer within {way.timeout_s:g} s"
            return RouteDecision(self.options.otherwise, RouteReason.UNAVAILABLE, f"{way.model}: {reason}")

    async def _by_asking(
        self, way: Classifier | Examples, facts: RouterInput, caller: RouterCaller, model_of: ModelOf
    ) -> RouteDecision:
        if not facts.request:
            return self._otherwise("there is no text")
        model = model_of(way.model)
        if isinstance(way, Examples):
            return await self._by_example(way, facts, caller, model)
        route = await classified(model, way, tuple(self.options.routes), facts.request, caller)
        if route not in self.options.routes:
            return self._otherwise(f"{way.model} has named no route")
        return RouteDecision(route, RouteReason.CLASSIFIED, f"{way.model} says so")

    async def _by_example(
        self, way: Examples, facts: RouterInput, caller: RouterCaller, model: ServedModel
    ) -> RouteDecision:
        task = self._examples.get(model)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            texts = tuple(text for _, text in way.texts)
            task = asyncio.create_task(embedded(model, texts, RouterCaller(Priority.INTERACTIVE, "")))
            self._examples[model] = task
        examples = await asyncio.shield(task)  # others may wait for it too
        index, similarity = nearest_example(examples, await embedded(model, (facts.request,), caller))
        if similarity < way.least_similarity:
            return self._otherwise(f"similarity={similarity:.2f}")
        route = way.texts[index][0]
        return RouteDecision(
            route, RouteReason.SIMILAR, f"example of '{route}' (similarity={similarity:.2f})"
        )

    def _otherwise(self, why: str) -> RouteDecision:
        return RouteDecision(self.options.otherwise, RouteReason.OTHERWISE, why)
