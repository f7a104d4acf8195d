from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec

from openai_cpu_server import __version__
from openai_cpu_server.answers.cache import AnswerCache, AnswerPlace, FoundAnswer, TurnComparison, is_good
from openai_cpu_server.answers.store import AnswerKey, AnswerScope, direction
from openai_cpu_server.api.generation.call import ResolvedRequest
from openai_cpu_server.api.generation.running import CachedAnswer, ReplayedGeneration, TimedEvent
from openai_cpu_server.contract.figures import Figures, added_up
from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.errors import ServerError
from openai_cpu_server.http.context import RequestContext, RequestLog
from openai_cpu_server.models.registry import ChosenModel, ModelRegistry
from openai_cpu_server.models.routing.router import RouterCaller, embedded_whole
from openai_cpu_server.models.served import FileDigests, ServedModel
from openai_cpu_server.observe.ended import AnswerUse

X_CACHE = "x-cache"
_EMBED_S = 3.0
"""Longest embedding of a turn."""


class SimilarAnswers(NamedTuple):
    model: str
    least: float


@dataclass(frozen=True)
class AnswerLookup:
    """Owned by one event loop."""

    cache: AnswerCache
    models: ModelRegistry
    similar: SimilarAnswers | None = None
    files: FileDigests = field(default_factory=FileDigests)

    async def __aenter__(self) -> AnswerLookup:
        await self.cache.measure()
        self.files.begin(self.models.default)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cache.close()

    async def find(self, call: ResolvedRequest, chosen: ChosenModel, context: RequestContext) -> CachedAnswer:
        """Return an earlier answer, or a callback that stores the new one. A failing cache is bypassed."""
        began_s, request_log = time.monotonic(), context.request_log
        question = await self._question(call, chosen, context)
        if question is None:
            return _shown(call, AnswerUse.BYPASS, request_log)
        found = await self.cache.find(question, await self._comparing(call, question))
        if found is None:
            return _shown(call, AnswerUse.BYPASS, request_log)
        if isinstance(found, AnswerPlace):
            keep = partial(self._keep, question, found, chosen)
            return _shown(call, AnswerUse.MISS, request_log)._replace(keep=keep)
        use = AnswerUse.EXACT if found.similarity is None else AnswerUse.SEMANTIC
        return _shown(call, use, request_log, found.similarity)._replace(held=_held(found, began_s))

    async def _question(
        self, call: ResolvedRequest, chosen: ChosenModel, context: RequestContext
    ) -> AnswerKey | None:
        # Similar answers need a single prompt, and a header that reports the match.
        has_turn = len(call.prompts) == 1 and context.request_log.has_headers
        turn, key = call.prompts[0].turn if has_turn else None, context.identity.key
        if not call.is_cached or (turn is None and not call.is_repeatable):
            return None
        file, info = await self.files.of(chosen.model), chosen.model.engine.info
        if file is None or info is None:
            return None
        return AnswerKey(
            scope=AnswerScope(
                holder=key.digest.hex() if key else "",
                model=file,
                kv_type=info.kv_type,
                adapter=chosen.adapter_key,
                version=__version__,
            ),
            requests=call.requests,
            is_repeatable=call.is_repeatable,
            output_limit=0 if call.context_ends_it else call.max_output_tokens,
            turn=turn,
        )

    async def _comparing(self, call: ResolvedRequest, question: AnswerKey) -> TurnComparison | None:
        if self.similar is None or question.turn is None:
            return None
        model = self.models.choose(self.similar.model, None).model
        file = await self.files.of(model)
        if file is None:
            return None
        request = call.requests[0]
        caller = RouterCaller(call.priority, request.client, group=request.group)
        return TurnComparison(file, self.similar.least, partial(_vector, model, caller))

    def _keep(
        self, question: AnswerKey, place: AnswerPlace, chosen: ChosenModel, events: Sequence[TokenEvent]
    ) -> None:
        """Skip the answer if another adapter has taken the name meanwhile."""
        finishes = [event.finish for event in events if event.finish is not None]
        are_good = all(is_good(finish, output_limit=question.output_limit) for finish in finishes)
        if are_good and chosen.adapter_key == question.scope.adapter:
            self.cache.keep(question, place, events)


async def _vector(model: ServedModel, caller: RouterCaller, text: str) -> bytes | None:
    try:
        rows = await asyncio.wait_for(embedded_whole(model, text, caller), _EMBED_S)
    except (ServerError, asyncio.TimeoutError):
        return None
    return None if rows is None else direction(rows[0])


def _shown(
    call: ResolvedRequest, use: AnswerUse, request_log: RequestLog, similarity: float | None = None
) -> CachedAnswer:
    request_log.answered_from_cache(use, similarity)
    header = use.value
    if similarity is not None:
        # Rounded down, because 1.00 is for turns that the embedding model cannot distinguish.
        header += f"; similarity={math.floor(100 * (similarity + 1e-6)) / 100:.2f}"
    return CachedAnswer(msgspec.structs.replace(call, headers={**call.headers, X_CACHE: header}))


def _held(found: FoundAnswer, began_s: float) -> ReplayedGeneration:
    now_s = time.monotonic()
    finishes = [event.finish for event in found.events if event.finish is not None]
    latency_ms = 1000 * (now_s - began_s)
    figures = Figures(
        **added_up(finishes),
        queue_ms=0.0,
        prefill_ms=latency_ms,
        latency_ms=latency_ms,
        tokens_per_second=0.0,
    )
    return ReplayedGeneration([TimedEvent(event, now_s) for event in found.events], figures)
