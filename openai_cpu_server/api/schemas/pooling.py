"""The bodies of `POST /v1/embeddings` and `POST /v1/rerank`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Union

from pydantic import BeforeValidator, Field, Tag

from openai_cpu_server.api.schemas.base import Body
from openai_cpu_server.api.schemas.generation import Tier
from openai_cpu_server.api.schemas.numbers import Seconds, Several
from openai_cpu_server.api.schemas.unheeded import (
    EMBEDDING_HINTS,
    EMBEDDING_REFUSALS,
    RERANK_HINTS,
    RERANK_REFUSALS,
    Hints,
    Refusals,
)
from openai_cpu_server.api.schemas.unions import DOCUMENT_KIND, PROMPT_KIND, NonEmpty, Tokens
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


class PoolingBody(Body):
    """Fields that the two share."""

    model: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    """What OpenAI calls `user` now."""
    service_tier: Tier | None = None

    # Ours.
    truncate: Truncate | None = None
    """Cut an input that is longer than the model takes, instead of refusing it."""
    priority: str | None = None
    timeout: Seconds | None = None
    """Seconds that the call may take, waiting included."""


class EmbeddingBody(PoolingBody):
    most_numbers: ClassVar[int] = MOST_TOKENS
    hints: ClassVar[Hints] = EMBEDDING_HINTS
    refusals: ClassVar[Refusals] = EMBEDDING_REFUSALS

    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Several | None = None


class TextDocument(Body):
    is_open: ClassVar[bool] = True

    text: str


Document = Annotated[
    Union[Annotated[str, Tag("<text>")], Annotated[TextDocument, Tag("<object>")]], DOCUMENT_KIND
]


class RerankBody(PoolingBody):
    """The names are those of Cohere, Jina and vLLM."""

    hints: ClassVar[Hints] = RERANK_HINTS
    refusals: ClassVar[Refusals] = RERANK_REFUSALS

    query: NonEmpty
    documents: Annotated[list[Document], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    top_n: Several | None = None
    return_documents: bool | None = None
    """Absent: they are returned, as vLLM and Jina do."""
    use_activation: bool | None = None
    """vLLM's name. False: the model's own numbers, not squeezed between 0 and 1."""
