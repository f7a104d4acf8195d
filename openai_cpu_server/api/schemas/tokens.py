"""The bodies of `POST /tokenize` and `POST /detokenize`; fields as llama-server and vLLM name them."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from openai_cpu_server.api.schemas.base import Body
from openai_cpu_server.api.schemas.chat import Messages
from openai_cpu_server.json_size import MOST_TOKENS


class TokenizeBody(Body):
    """Exactly one of `content` (llama-server), `prompt` (vLLM) and `messages`."""

    model: str | None = None
    content: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special: bool | None = None
    """Put BOS first where the model wants it; absent: not for `content`, but for `prompt`."""
    with_pieces: bool | None = None


class DetokenizeBody(Body):
    most_numbers: ClassVar[int] = MOST_TOKENS

    model: str | None = None
    tokens: Annotated[list[int], Field(max_length=262_144, fail_fast=True)]
