from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union

import msgspec
import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field, Tag

from openai_cpu_server.api.generation import schema as shared
from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.engine import Embedding, Engine, Generation
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import FinishReason
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.errors import GenerationFailed, InvalidRequest, ServerError, wrong
from openai_cpu_server.http import ignored_params
from openai_cpu_server.http.parse import Body, by_value
from openai_cpu_server.json_size import MOST_TOKENS

MAX_INPUTS = 2048
"""OpenAI's limit."""

_SOME = Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)
EmbeddingInput = Annotated[
    Union[
        Annotated[shared.NonEmpty, Tag("<text>")],
        Annotated[list[shared.NonEmpty], _SOME, Tag("<texts>")],
        Annotated[shared.TokenIds, Tag("<tokens>")],
        Annotated[list[shared.TokenIds], _SOME, Tag("<token lists>")],
    ],
    shared.PROMPT_KIND,
]


Truncate = Annotated[
    bool,
    BeforeValidator(
        lambda value: (
            {"END": True, "NONE": False}.get(value.upper(), value) if isinstance(value, str) else value
        ),
        json_schema_input_type=Union[bool, Literal["END", "NONE"]],
    ),
]
"""Cohere and NVIDIA use words, in any case."""
Side = Annotated[
    Literal["left", "right"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
]
"""TEI writes `Left` and `Right`."""


class Cut(NamedTuple):
    most_tokens: int | None
    """Model's limit if None."""
    keeps_end: bool
    """True cuts the beginning."""


class PoolingBody(Body):
    model: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: shared.Tier | None = None

    # Ours.
    truncate: Truncate | None = None
    truncate_prompt_tokens: shared.LastTokens | None = None
    """vLLM's limit, with control tokens; -1 for the model's."""
    truncation_side: Side | None = None
    """vLLM's. Default: the end."""
    priority: str | None = None
    timeout: shared.Seconds | None = None

    @property
    def cut(self) -> Cut | None:
        tokens = self.truncate_prompt_tokens
        if tokens is not None and self.truncate is False:
            raise wrong("'truncate' cannot be false together with 'truncate_prompt_tokens'.", "truncate")
        if tokens is None and not self.truncate:
            return None
        return Cut(tokens if tokens is not None and tokens > 0 else None, self.side == "left")

    @property
    def side(self) -> str:
        return self.truncation_side or "right"


class EmbeddingBody(PoolingBody):
    most_numbers: ClassVar[int] = MOST_TOKENS
    ignored: ClassVar[ignored_params.IgnoredParams] = ignored_params.EMBEDDING_IGNORED
    unsupported: ClassVar[ignored_params.UnsupportedParams] = ignored_params.EMBEDDING_UNSUPPORTED

    input: EmbeddingInput
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: shared.PositiveCount | None = None


class LlamaEmbedBody(PoolingBody):
    is_open: ClassVar[bool] = True
    most_numbers: ClassVar[int] = MOST_TOKENS

    content: shared.MixedPrompts | None = None
    """Text, token ids and texts, object with `prompt_string`, or list of these."""
    input: shared.MixedPrompts | None = None
    embd_normalize: Literal[-1, 2] | None = None
    """-1 for the model's own length, 2 or absent for length 1."""


class TextDocument(shared.OpenBody):
    text: str


Document = Annotated[
    Union[str, TextDocument],
    by_value("text_or_object", "Input should be a string, or an object with 'text'"),
]


class RerankBody(PoolingBody):
    ignored: ClassVar[ignored_params.IgnoredParams] = ignored_params.RERANK_IGNORED
    unsupported: ClassVar[ignored_params.UnsupportedParams] = ignored_params.RERANK_UNSUPPORTED

    query: shared.NonEmpty
    documents: Annotated[list[Document], _SOME] | None = None
    top_n: shared.PositiveCount | None = None
    return_documents: bool | None = None
    """True by default, as in vLLM and Jina."""
    use_activation: bool | None = None
    """vLLM's name. False for the model's own numbers instead of 0 to 1."""

    # Text Embeddings Inference's.
    texts: Annotated[list[str], _SOME] | None = None
    """Replaces `documents`, with a list as the response."""
    return_text: bool | None = None
    raw_scores: bool | None = None
    truncation_direction: Side | None = None

    @property
    def side(self) -> str:
        return self.truncation_direction or super().side

    @property
    def activates(self) -> bool:
        return not self.raw_scores if self.use_activation is None else self.use_activation


TextOrTexts = Annotated[Union[shared.NonEmpty, Annotated[list[shared.NonEmpty], _SOME]], shared.TEXT_OR_LIST]


class ScoreBody(PoolingBody):
    """vLLM's body. `text_1` is one text for all of `text_2`, or a list of the same length."""

    text_1: TextOrTexts
    text_2: TextOrTexts
    use_activation: bool | None = None

    @property
    def activates(self) -> bool:
        return self.use_activation is not False


class ClassifyBody(PoolingBody):
    most_numbers: ClassVar[int] = MOST_TOKENS

    input: EmbeddingInput
    use_activation: bool | None = None
    """False for the model's own numbers instead of probabilities."""


class OllamaEmbedBody(PoolingBody):
    """`truncate` is true by default, and unknown fields are ignored, as in Ollama."""

    is_open: ClassVar[bool] = True
    ignored: ClassVar[ignored_params.IgnoredParams] = ignored_params.OLLAMA_EMBED_IGNORED

    input: Annotated[
        Union[str, Annotated[list[shared.NonEmpty], Field(max_length=MAX_INPUTS, fail_fast=True)]],
        shared.TEXT_OR_LIST,
    ]
    """Empty texts and lists have no vector, as in Ollama."""
    dimensions: shared.PositiveCount | None = None


class OllamaOldEmbedBody(PoolingBody):
    is_open: ClassVar[bool] = True
    ignored: ClassVar[ignored_params.IgnoredParams] = ignored_params.OLLAMA_EMBED_IGNORED

    prompt: str


Vectors = npt.NDArray[np.float32]
"""Shape: inputs x numbers."""
Writer = Callable[[Vectors, Figures], bytes]


class YesOrNo(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts answered by `yes` or `no`."""

    requests: tuple[GenerationRequest, ...]
    yes: int
    no: int

    @property
    def id(self) -> str:
        return self.requests[0].id.partition("/")[0]

    @property
    def priority(self) -> Priority:
        return self.requests[0].priority

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        return tuple(request.tokens for request in self.requests)

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.inputs))


class PoolingCall(msgspec.Struct, frozen=True, kw_only=True):
    work: Union[EmbedRequest, YesOrNo]
    timeout_s: float | None
    render: Writer
    headers: Mapping[str, str] = {}


def submit(call: PoolingCall, engine: Engine) -> Embedding:
    if not call.work.inputs:
        return NoVectors()
    if isinstance(call.work, EmbedRequest):
        return engine.embed(call.work)
    try:
        return YesOrNoScores(engine.generate(call.work.requests), call.work)
    except InvalidRequest as error:  # more sequences than may wait
        raise InvalidRequest(str(error), param="documents", code=error.code) from error


class NoVectors:
    """`Embedding` without inputs, which engines do not accept."""

    figures = Figures(queue_ms=0.0, prefill_ms=0.0, latency_ms=0.0, tokens_per_second=0.0)

    async def __aenter__(self) -> NoVectors:
        return self

    async def __aexit__(self, *error: Any) -> None: ...

    async def vectors(self) -> bytes:
        return b""

    def fail_in(self, seconds: float, error: ServerError) -> None: ...


@dataclass
class YesOrNoScores:
    """`Embedding` of one number per prompt: log odds of yes against no."""

    generation: Generation
    prompts: YesOrNo

    async def __aenter__(self) -> YesOrNoScores:
        await self.generation.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.generation.__aexit__(*error)

    async def vectors(self) -> bytes:
        scores: dict[str, float] = {}
        async for event in self.generation:
            if event.logprobs:
                logprobs = dict(event.logprobs[0].top)
                scores[event.id] = logprobs[self.prompts.yes] - logprobs[self.prompts.no]
            if event.finish is not None and event.finish.reason is FinishReason.CANCELLED:
                raise GenerationFailed("The server ended the request before its end.")
        ids = [request.id for request in self.prompts.requests]
        if not scores.keys() >= set(ids):
            raise GenerationFailed("The model answered neither yes nor no.")
        return np.array([scores[request_id] for request_id in ids], np.float32).tobytes()

    @property
    def figures(self) -> Figures:
        figures = self.generation.figures
        compute_ms = figures.latency_ms - figures.queue_ms
        return Figures(
            queue_ms=figures.queue_ms,
            prefill_ms=compute_ms,
            latency_ms=figures.latency_ms,
            tokens_per_second=1000 * self.prompts.num_tokens / compute_ms if compute_ms > 0 else 0.0,
        )

    def fail_in(self, seconds: float, error: ServerError) -> None:
        self.generation.fail_in(seconds, error)
