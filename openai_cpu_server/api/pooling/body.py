"""The bodies of `POST /v1/embeddings` and `POST /v1/rerank`, and the call that one becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union

import msgspec
import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field, Tag

from openai_cpu_server.api.asking.as_ask import LastTokens, Prompts
from openai_cpu_server.api.asking.body import (
    DOCUMENT_KIND,
    PROMPT_KIND,
    TEXT_OR_LIST,
    NonEmpty,
    OpenBody,
    Seconds,
    Several,
    Tier,
    Tokens,
)
from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.engine import Embedding, Engine, Generation
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import FinishReason
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.errors import GenerationFailed, InvalidRequest, ServerError, wrong
from openai_cpu_server.http.parse import Body
from openai_cpu_server.http.unheeded import (
    EMBEDDING_HINTS,
    EMBEDDING_REFUSALS,
    RERANK_HINTS,
    RERANK_REFUSALS,
    Hints,
    Refusals,
)
from openai_cpu_server.json_size import MOST_TOKENS

MAX_INPUTS = 2048
"""OpenAI's limit for one call."""

Input = Annotated[
    Union[
        Annotated[NonEmpty, Tag("<text>")],
        Annotated[list[NonEmpty], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("<texts>")],
        Annotated[Tokens, Tag("<tokens>")],
        Annotated[
            list[Tokens], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("<token lists>")
        ],
    ],
    PROMPT_KIND,
]


_TRUNCATE = {"END": True, "NONE": False}


def _as_switch(value: object) -> object:
    """Cohere's and NVIDIA's words for it, in letters of any size."""
    return _TRUNCATE.get(value.upper(), value) if isinstance(value, str) else value


Truncate = Annotated[
    bool, BeforeValidator(_as_switch, json_schema_input_type=Union[bool, Literal["END", "NONE"]])
]


def _as_side(value: object) -> object:
    """TEI writes it `Left` and `Right`."""
    return value.lower() if isinstance(value, str) else value


Side = Annotated[Literal["left", "right"], BeforeValidator(_as_side)]


class Cut(NamedTuple):
    """What is longer is cut."""

    most_tokens: int | None
    """None: to what the model takes."""
    keeps_end: bool
    """The beginning goes in place of the end."""


class PoolingBody(Body):
    """Fields that all share."""

    model: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    """What OpenAI calls `user` now."""
    service_tier: Tier | None = None

    # Ours.
    truncate: Truncate | None = None
    """Cut an input that is longer than the model takes, instead of refusing it."""
    truncate_prompt_tokens: LastTokens | None = None
    """vLLM's: cut to so many tokens, control tokens included; -1: to what the model takes."""
    truncation_side: Side | None = None
    """vLLM's: where it is cut; absent: at its end."""
    priority: str | None = None
    timeout: Seconds | None = None
    """Seconds that the call may take, waiting included."""

    @property
    def cut(self) -> Cut | None:
        """None: what is too long is refused. Raises InvalidRequest."""
        tokens = self.truncate_prompt_tokens
        if tokens is not None and self.truncate is False:
            raise wrong("'truncate' cannot be false beside 'truncate_prompt_tokens'.", "truncate")
        if tokens is None and not self.truncate:
            return None
        return Cut(tokens if tokens is not None and tokens > 0 else None, self.side == "left")

    @property
    def side(self) -> str:
        return self.truncation_side or "right"


class EmbeddingBody(PoolingBody):
    most_numbers: ClassVar[int] = MOST_TOKENS
    hints: ClassVar[Hints] = EMBEDDING_HINTS
    refusals: ClassVar[Refusals] = EMBEDDING_REFUSALS

    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Several | None = None


class LlamaEmbedBody(PoolingBody):
    """llama-server's: one of `content` and `input`. Fields that are not known it ignores, too."""

    is_open: ClassVar[bool] = True
    most_numbers: ClassVar[int] = MOST_TOKENS

    content: Prompts | None = None
    """A text, a list of token ids and texts, an object with `prompt_string`, or a list of these."""
    input: Prompts | None = None
    embd_normalize: Literal[-1, 2] | None = None
    """-1: as the model gives them; 2 and absent: with length 1."""


_SOME = Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)


class TextDocument(OpenBody):
    text: str


Document = Annotated[
    Union[Annotated[str, Tag("<text>")], Annotated[TextDocument, Tag("<object>")]], DOCUMENT_KIND
]


class RerankBody(PoolingBody):
    """The names are those of Cohere, Jina and vLLM."""

    hints: ClassVar[Hints] = RERANK_HINTS
    refusals: ClassVar[Refusals] = RERANK_REFUSALS

    query: NonEmpty
    documents: Annotated[list[Document], _SOME] | None = None
    top_n: Several | None = None
    return_documents: bool | None = None
    """Absent: they are returned, as vLLM and Jina do."""
    use_activation: bool | None = None
    """vLLM's name. False: the model's own numbers, not squeezed between 0 and 1."""

    # Text Embeddings Inference's.
    texts: Annotated[list[str], _SOME] | None = None
    """In place of `documents`: the answer is a list."""
    return_text: bool | None = None
    raw_scores: bool | None = None
    """The opposite of `use_activation`."""
    truncation_direction: Side | None = None
    """The same as `truncation_side`."""

    @property
    def side(self) -> str:
        return self.truncation_direction or super().side

    @property
    def activates(self) -> bool:
        return not self.raw_scores if self.use_activation is None else self.use_activation


TextOrTexts = Annotated[
    Union[
        Annotated[NonEmpty, Tag("<text>")],
        Annotated[list[NonEmpty], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("<list>")],
    ],
    TEXT_OR_LIST,
]


class ScoreBody(PoolingBody):
    """vLLM's: one text for all of `text_2`, or one for each."""

    text_1: TextOrTexts
    text_2: TextOrTexts
    use_activation: bool | None = None
    """As of `RerankBody`."""

    @property
    def activates(self) -> bool:
        return self.use_activation is not False


class ClassifyBody(PoolingBody):
    """vLLM's."""

    most_numbers: ClassVar[int] = MOST_TOKENS

    input: Input
    use_activation: bool | None = None
    """False: the model's own numbers in place of probabilities."""


Rows = npt.NDArray[np.float32]
"""(inputs, numbers)."""
Writer = Callable[[Rows, Figures], bytes]
"""Makes the body of a response. It runs in any thread."""


class YesOrNo(msgspec.Struct, frozen=True, kw_only=True):
    """Questions whose first output token is `yes` or `no`."""

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
    """An API call as it was resolved."""

    work: Union[EmbedRequest, YesOrNo]
    timeout_s: float | None
    """The client's limit, from the call's arrival to its end."""
    render: Writer
    headers: Mapping[str, str] = {}
    """The response says there what was ignored."""


def submit(call: PoolingCall, engine: Engine) -> Embedding:
    """Raises as `Engine.embed` and `Engine.generate`."""
    if not call.work.inputs:
        return NoVectors()
    if isinstance(call.work, EmbedRequest):
        return engine.embed(call.work)
    try:
        return YesOrNoScores(engine.generate(call.work.requests), call.work)
    except InvalidRequest as error:  # more sequences than may wait
        raise InvalidRequest(str(error), param="documents", code=error.code) from error


class NoVectors:
    """An `Embedding` of no inputs. The engine only takes requests that have some."""

    figures = Figures(queue_ms=0.0, prefill_ms=0.0, latency_ms=0.0, tokens_per_second=0.0)

    async def __aenter__(self) -> NoVectors:
        return self

    async def __aexit__(self, *error: Any) -> None:
        """Nothing was begun."""

    async def vectors(self) -> bytes:
        return b""

    def fail_in(self, seconds: float, error: ServerError) -> None:
        """Nothing takes time."""


class YesOrNoScores:
    """An `Embedding` of one number for each question: how much likelier yes is than no, as a logarithm."""

    def __init__(self, generation: Generation, asked: YesOrNo) -> None:
        self._generation = generation
        self._asked = asked

    async def __aenter__(self) -> YesOrNoScores:
        await self._generation.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._generation.__aexit__(*error)

    async def vectors(self) -> bytes:
        scores: dict[str, float] = {}
        async for event in self._generation:
            if event.logprobs:
                scores[event.id] = self._score(event.logprobs[0])
            if event.finish is not None and event.finish.reason is FinishReason.CANCELLED:
                raise GenerationFailed("The server ended the request before its end.")
        missing = [request.id for request in self._asked.requests if request.id not in scores]
        if missing:
            raise GenerationFailed("The model has answered neither yes nor no.")
        return np.array([scores[request.id] for request in self._asked.requests], np.float32).tobytes()

    @property
    def figures(self) -> Figures:
        told = self._generation.figures
        compute_ms = told.latency_ms - told.queue_ms
        return Figures(
            queue_ms=told.queue_ms,
            prefill_ms=compute_ms,
            latency_ms=told.latency_ms,
            tokens_per_second=1000 * self._asked.num_tokens / compute_ms if compute_ms > 0 else 0.0,
        )

    def fail_in(self, seconds: float, error: ServerError) -> None:
        self._generation.fail_in(seconds, error)

    def _score(self, told: TokenLogprob) -> float:
        known = dict(told.top)
        return known[self._asked.yes] - known[self._asked.no]
