from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.generation.call import ResolveContext
from openai_cpu_server.api.generation.params import LONG_BODY
from openai_cpu_server.api.generation.route import while_connected
from openai_cpu_server.api.generation.running import limit_time
from openai_cpu_server.api.pooling import render, schema, to_params
from openai_cpu_server.api.state import AppState
from openai_cpu_server.contract.engine import Embedding
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.errors import DeadlineExceeded, GenerationFailed, ServerError
from openai_cpu_server.http.body import in_thread, off_loop, streamed_body
from openai_cpu_server.http.context import Caller, RequestContext, RequestLog, context_of
from openai_cpu_server.http.errors import NumberedErrorObject, numbered_at
from openai_cpu_server.http.parse import parse
from openai_cpu_server.http.routes import ApiRouter, model_route
from openai_cpu_server.models.registry import Ability, ChosenModel, choose_able, ensure_served
from openai_cpu_server.observe.ended import Distribution, EndedCall

B = TypeVar("B", bound=schema.PoolingBody)
_CHEAPER = 16
"""32 KiB of vectors take a millisecond."""


@dataclass(frozen=True)
class PoolingRoute(Generic[B]):
    state: AppState
    body: type[B]
    ability: Ability
    resolve: Callable[[B, ResolveContext], schema.PoolingCall]
    """Runs in any thread. Raises errors of `http/errors.py`."""

    async def create(self, request: Request) -> Response:
        data, context = await streamed_body(request), context_of(request.scope)
        call, working, chosen = await self._started(data, context)
        del data  # the call may wait for long
        context.body.release()
        request_log = context.request_log
        request_log.priority = call.work.priority
        limit_time(working, request_log, call.timeout_s, context.timeout_s)
        computing = partial(_rows, call, working, chosen.model.name, request_log)
        rows = await while_connected(request.receive, computing)
        body = await _written(call, rows, working.figures)
        return Response(body, media_type="application/json", headers=dict(call.headers))

    async def answer(self, data: bytes, context: RequestContext) -> bytes:
        """Answer a body without its own request, such as a batch row."""
        call, working, chosen = await self._started(data, context)
        if call.timeout_s is not None:
            working.fail_in(call.timeout_s, DeadlineExceeded(call.timeout_s))
        try:
            rows = await _rows(call, working, chosen.model.name, context.request_log)
        except GenerationFailed:
            chosen.model.loaded()  # an engine that is gone takes its requests with it: not their fault
            raise
        return await _written(call, rows, working.figures)

    async def _resolved(self, data: bytes, caller: Caller) -> tuple[schema.PoolingCall, ChosenModel]:
        reading = partial(parse, self.body, data, lenient=self.state.options.lenient)
        body, ignored = await off_loop(len(data), reading)
        allowed = caller.identity.allowed_models
        await ensure_served(self.state.models, body.model, allowed)
        chosen = choose_able(self.state.models, body.model, allowed, self.ability)
        context = ResolveContext(chosen, chosen.model.loaded(), caller, self.state.options)
        # Each document of a ranking brings the query along: that work does not go by the size of the body.
        is_slow = self.ability is not Ability.EMBED or len(data) > LONG_BODY
        resolving = partial(self.resolve, body, context)
        call = await in_thread(resolving, is_slow=is_slow)
        return msgspec.structs.replace(call, headers=ignored.headers), chosen

    async def _started(
        self, data: bytes, context: RequestContext
    ) -> tuple[schema.PoolingCall, Embedding, ChosenModel]:
        """Choose again if the model is replaced before submitting."""
        while True:
            call, chosen = await self._resolved(data, context.caller)
            await context.reservation.reserve(prompt_tokens=call.work.num_tokens, output_tokens=0)
            try:
                return call, schema.submit(call, chosen.model.engine), chosen
            except ServerError:
                await context.reservation.refund()
                if self.state.models.is_current(chosen.model):
                    raise


async def _rows(
    call: schema.PoolingCall, working: Embedding, model: str, request_log: RequestLog
) -> schema.Vectors:
    num_inputs, num_done = len(call.work.inputs), 0
    try:
        async with working:
            vectors = await working.vectors()
        num_done = num_inputs
    finally:
        figures = working.figures
        ended = EndedCall(
            figures=msgspec.structs.replace(figures, prompt_tokens=call.work.num_tokens),
            model=model,
            submitted_s=time.monotonic() - figures.latency_ms / 1000,
            gaps=Distribution(),
            inputs=num_done,
        )
        request_log.generated(ended)
    return np.frombuffer(vectors, np.dtype("<f4")).reshape(num_inputs, -1 if num_inputs else 0)


async def _written(call: schema.PoolingCall, rows: schema.Vectors, figures: Figures) -> bytes:
    return await off_loop(rows.nbytes // _CHEAPER, partial(call.render, rows, figures))


_route = partial(model_route, tag="Embeddings", streams=False)


class OllamaEmbedError(msgspec.Struct, frozen=True):
    error: str


_ollama_route = partial(_route, tag="Ollama", error=OllamaEmbedError)


class PoolingRoutes:
    def __init__(self, state: AppState) -> None:
        embed, rank = Ability.EMBED, Ability.RERANK
        self.embedding = PoolingRoute(state, schema.EmbeddingBody, embed, to_params.resolve_embeddings)
        self.reranking = PoolingRoute(state, schema.RerankBody, rank, to_params.resolve_ranking)
        self._scoring = PoolingRoute(state, schema.ScoreBody, rank, to_params.resolve_scores)
        self._classifying = PoolingRoute(
            state, schema.ClassifyBody, Ability.CLASSIFY, to_params.resolve_classes
        )
        self._llama_server = PoolingRoute(
            state, schema.LlamaEmbedBody, embed, to_params.resolve_llama_embedding
        )
        self._ollama = PoolingRoute(state, schema.OllamaEmbedBody, embed, to_params.resolve_ollama_embeddings)
        self._ollama_old = PoolingRoute(
            state, schema.OllamaOldEmbedBody, embed, to_params.resolve_ollama_embedding
        )

    @_route(
        "/v1/embeddings",
        body=schema.EmbeddingBody,
        answer=render.EmbeddingList,
        batched=lambda at: at.embedding.answer,
    )
    async def embed(self, request: Request) -> Response:
        """Embed texts."""
        return await self.embedding.create(request)

    @_route(
        "/v1/rerank",
        aliases=("/v2/rerank", "/rerank", "/reranking", "/v1/reranking"),  # of Cohere, Jina, llama-server
        body=schema.RerankBody,
        answer=(render.Reranked, list[render.RankedText]),
        batched=lambda at: at.reranking.answer,
    )
    async def rerank(self, request: Request) -> Response:
        """Sort documents by their relevance to a query."""
        return await self.reranking.create(request)

    @_route("/score", aliases=("/v1/score",), body=schema.ScoreBody, answer=render.ScoreList)
    async def score(self, request: Request) -> Response:
        """Score the similarity of pairs of texts."""
        return await self._scoring.create(request)

    @_route("/classify", aliases=("/v1/classify",), body=schema.ClassifyBody, answer=render.ClassList)
    async def classify(self, request: Request) -> Response:
        """Classify texts, with a model that has classes."""
        return await self._classifying.create(request)

    @_route(
        "/embedding",
        tag="llama-server",
        aliases=("/embeddings",),
        body=schema.LlamaEmbedBody,
        error=NumberedErrorObject,
        answer=list[render.LlamaVector],
    )
    async def embed_as_llama_server(self, request: Request) -> Response:
        """Embed texts, in llama-server's format."""
        return await self._llama_server.create(request)

    @_ollama_route("/api/embed", body=schema.OllamaEmbedBody, answer=render.OllamaVectors)
    async def embed_as_ollama(self, request: Request) -> Response:
        """Embed texts, in Ollama's format."""
        return await self._ollama.create(request)

    @_ollama_route("/api/embeddings", body=schema.OllamaOldEmbedBody, answer=render.OllamaVector)
    async def embed_one_as_ollama(self, request: Request) -> Response:
        """Embed a text, in Ollama's older format."""
        return await self._ollama_old.create(request)


ROUTER = ApiRouter[AppState](PoolingRoutes, shape=numbered_at("/embedding", "/embeddings"))
