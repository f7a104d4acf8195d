"""The bodies of `POST /v1/embeddings` and `POST /v1/rerank`."""

from __future__ import annotations

from typing import Annotated, Literal, Union

from pydantic import Field, Tag

from openai_cpu_server.api.schemas.base import Body
from openai_cpu_server.api.schemas.unions import DOCUMENT_KIND, PROMPT_KIND, NonEmpty, Tokens

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


class PoolingBody(Body):
    """Fields that the two share."""

    model: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    """What OpenAI calls `user` now."""
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None

    # Ours.
    truncate: bool | None = None
    """Cut an input that is longer than the model takes, instead of refusing it."""
    priority: str | None = None
    timeout: Annotated[float, Field(gt=0)] | None = None
    """Seconds that the call may take, waiting included."""


class EmbeddingBody(PoolingBody):
    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None


class TextDocument(Body):
    text: str


Document = Annotated[
    Union[Annotated[str, Tag("<text>")], Annotated[TextDocument, Tag("<object>")]], DOCUMENT_KIND
]


class RerankBody(PoolingBody):
    """The names are those of Cohere, Jina and vLLM."""

    query: NonEmpty
    documents: Annotated[list[Document], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    """Absent: they are returned, as vLLM and Jina do."""
    use_activation: bool | None = None
    """vLLM's name. False: the model's own numbers, not squeezed between 0 and 1."""
