"""The routes of embeddings and reranking."""

from __future__ import annotations

from dataclasses import replace

from openai_cpu_server.api.access.access import CALLS
from openai_cpu_server.api.parts import Parts
from openai_cpu_server.api.render.pooling import EmbeddingList, Reranked
from openai_cpu_server.api.routes.pooling import EMBEDDINGS, RERANKING, PoolingRoute
from openai_cpu_server.api.schemas.pooling import EmbeddingBody, RerankBody
from openai_cpu_server.http.routes import GENERATION_ERRORS, RouteRoom, RouteRow

EMBEDDING_ROOM = RouteRoom[Parts, PoolingRoute[EmbeddingBody]](
    lambda parts: PoolingRoute(EMBEDDINGS, parts.models, parts.options),
    (
        RouteRow(
            "POST",
            "/v1/embeddings",
            lambda at: at.create,
            access=CALLS,
            summary="Texts as vectors",
            tag="Embeddings",
            body=EmbeddingBody,
            answer=EmbeddingList,
            errors=GENERATION_ERRORS,
            batched=lambda at: at.answer,
        ),
    ),
)
_RERANK = RouteRow[PoolingRoute[RerankBody]](
    "POST",
    "/v1/rerank",
    lambda at: at.create,
    access=CALLS,
    summary="Documents by their relevance to a query",
    tag="Embeddings",
    body=RerankBody,
    answer=Reranked,
    errors=GENERATION_ERRORS,
)
RERANKING_ROOM = RouteRoom[Parts, PoolingRoute[RerankBody]](
    lambda parts: PoolingRoute(RERANKING, parts.models, parts.options),
    (
        replace(_RERANK, batched=lambda at: at.answer),
        _RERANK.at("/v2/rerank"),
        _RERANK.at("/rerank"),
    ),
)
