"""`/api/embed` and `/api/embeddings`, Ollama's names of `/v1/embeddings`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Union

import msgspec
from pydantic import Field, Tag

from openai_cpu_server.api.generation.call import ResolveContext
from openai_cpu_server.api.generation.schema import TEXT_OR_LIST, NonEmpty, Several
from openai_cpu_server.api.parts import AppState
from openai_cpu_server.api.pooling.body import MAX_INPUTS, Cut, PoolingBody, PoolingCall, Rows
from openai_cpu_server.api.pooling.embed import InputReader, dimensions_of, embed_request
from openai_cpu_server.api.pooling.render import as_numbers, checked, normalised
from openai_cpu_server.api.pooling.routes import PoolingFamily, PoolingRoute
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.http.ignored_params import Hints, IgnoredParam
from openai_cpu_server.http.keys import CALLS
from openai_cpu_server.http.routes import GENERATION_ERRORS, ApiRoute, ApiRouter
from openai_cpu_server.models.registry import Ability

_NS_PER_MS = 1e6
_HINTS: Hints = {
    "options": IgnoredParam("they are for answers and for Ollama's own runner"),
    "keep_alive": IgnoredParam("the server decides how long models stay"),
}


_CUT = Cut(None, keeps_end=False)


class OllamaEmbedBody(PoolingBody):
    """`truncate` is true by default, and unknown fields are ignored, as in Ollama."""

    is_open: ClassVar[bool] = True
    hints: ClassVar[Hints] = _HINTS

    input: Annotated[
        Union[
            Annotated[str, Tag("<text>")],
            Annotated[list[NonEmpty], Field(max_length=MAX_INPUTS, fail_fast=True), Tag("<list>")],
        ],
        TEXT_OR_LIST,
    ]
    """An empty text or list has no vector, as in Ollama."""
    dimensions: Several | None = None


class OllamaOldEmbedBody(PoolingBody):
    is_open: ClassVar[bool] = True
    hints: ClassVar[Hints] = _HINTS

    prompt: str
    """An empty text has no vector, as in Ollama."""


class OllamaVectors(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    """Nanoseconds."""
    load_duration: int
    """Waiting time, with loading of the model."""
    prompt_eval_count: int


class OllamaVector(msgspec.Struct, frozen=True):
    embedding: list[float]


class _VectorsWriter(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    prompt_tokens: int
    dimensions: int | None

    def __call__(self, rows: Rows, figures: Figures) -> bytes:
        vectors = b",".join(as_numbers(normalised(checked(rows)[:, : self.dimensions])))
        total, waited = (round(ms * _NS_PER_MS) for ms in (figures.latency_ms, figures.queue_ms))
        counts = (total, waited, self.prompt_tokens)
        tail = b'"total_duration":%d,"load_duration":%d,"prompt_eval_count":%d}' % counts
        return b'{"model":%b,"embeddings":[%b],%b' % (msgspec.json.encode(self.model), vectors, tail)


def _one_vector(rows: Rows, figures: Figures) -> bytes:
    """The older route returns vectors that are not normalized."""
    return b'{"embedding":%b}' % (b"".join(as_numbers(checked(rows))) or b"[]")


def _vectors(body: OllamaEmbedBody, asking: ResolveContext) -> PoolingCall:
    dimensions = dimensions_of(body.dimensions, asking.info.embedding_size)
    texts = list(filter(None, [body.input])) if isinstance(body.input, str) else body.input
    params = (
        ["input"] * len(texts)
        if isinstance(body.input, str)
        else [f"input[{at}]" for at in range(len(texts))]
    )
    inputs = InputReader.of(asking, None if body.truncate is False else _CUT).texts(texts, params)
    request = embed_request(inputs, body, asking, id_prefix="ollama-")
    writer = _VectorsWriter(model=asking.chosen.name, prompt_tokens=request.num_tokens, dimensions=dimensions)
    return PoolingCall(work=request, timeout_s=body.timeout, render=writer)


def _vector(body: OllamaOldEmbedBody, asking: ResolveContext) -> PoolingCall:
    texts = list(filter(None, [body.prompt]))
    inputs = InputReader.of(asking, _CUT).texts(texts, ["prompt"] * len(texts))
    request = embed_request(inputs, body, asking, id_prefix="ollama-")
    return PoolingCall(work=request, timeout_s=body.timeout, render=_one_vector)


class OllamaEmbedRoutes:
    def __init__(self, parts: AppState) -> None:
        new = PoolingFamily(OllamaEmbedBody, Ability.EMBED, _vectors)
        old = PoolingFamily(OllamaOldEmbedBody, Ability.EMBED, _vector)
        self.new = PoolingRoute(new, parts.models, parts.options)
        self.old = PoolingRoute(old, parts.models, parts.options)


class OllamaEmbedError(msgspec.Struct, frozen=True):
    error: str


_rows = (
    ApiRoute[OllamaEmbedRoutes](
        "POST",
        "/api/embed",
        lambda at: at.new.create,
        access=CALLS,
        summary="Texts as vectors, as Ollama tells them",
        tag="Ollama",
        body=OllamaEmbedBody,
        answer=OllamaVectors,
        error=OllamaEmbedError,
        errors=GENERATION_ERRORS,
    ),
    ApiRoute[OllamaEmbedRoutes](
        "POST",
        "/api/embeddings",
        lambda at: at.old.create,
        access=CALLS,
        summary="A text as a vector, by Ollama's older name",
        tag="Ollama",
        body=OllamaOldEmbedBody,
        answer=OllamaVector,
        error=OllamaEmbedError,
        errors=GENERATION_ERRORS,
    ),
)
OLLAMA_ROOM = ApiRouter[AppState, OllamaEmbedRoutes](OllamaEmbedRoutes, _rows)
