"""`POST /tokenize` and `POST /detokenize`, in the shapes of llama-server and vLLM at once."""

from __future__ import annotations

from functools import partial
from typing import TypeVar, Union

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.access.identity import identity_of
from openai_cpu_server.api.offload import off_loop
from openai_cpu_server.api.resolve.messages import checked_messages
from openai_cpu_server.api.resolve.sampling import check_tokens
from openai_cpu_server.api.routes.models import json_response
from openai_cpu_server.api.schemas.base import Body
from openai_cpu_server.api.schemas.parse import Ignored, parse
from openai_cpu_server.api.schemas.tokens import DetokenizeBody, TokenizeBody
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ServedModel

B = TypeVar("B", bound=Body)


class TokenPiece(msgspec.Struct, frozen=True):
    id: int
    piece: Union[str, tuple[int, ...]]
    """Text, or the bytes where they are no text by themselves."""


class Tokenized(msgspec.Struct, frozen=True):
    tokens: tuple[Union[int, TokenPiece], ...]
    count: int
    max_model_len: int | None


class Detokenized(msgspec.Struct, frozen=True):
    content: str
    prompt: str


class TokenRoutes:
    """They need no engine: the vocabulary is in this process."""

    def __init__(self, models: ModelRegistry, *, lenient: bool) -> None:
        self._models = models
        self._lenient = lenient

    async def tokenize(self, request: Request) -> Response:
        data = await request.body()
        body, ignored = await self._read(TokenizeBody, data)
        model = self._model(body.model, request)
        tokens = await off_loop(len(data), partial(_tokens, body, model))
        shown = tuple(_piece(token, model.tokenizer) if body.with_pieces else token for token in tokens)
        info = model.engine.info
        limit = info.context_limit if info else None
        return json_response(Tokenized(shown, len(tokens), limit), headers=ignored.headers)

    async def detokenize(self, request: Request) -> Response:
        data = await request.body()
        body, ignored = await self._read(DetokenizeBody, data)
        tokenizer = self._model(body.model, request).tokenizer
        text = await off_loop(len(data), partial(_text, body, tokenizer))
        return json_response(Detokenized(text, text), headers=ignored.headers)

    async def _read(self, schema: type[B], data: bytes) -> tuple[B, Ignored]:
        return await off_loop(len(data), partial(parse, schema, data, lenient=self._lenient))

    def _model(self, name: str | None, request: Request) -> ServedModel:
        return self._models.choose(name, identity_of(request.scope).allowed_models).model


def _tokens(body: TokenizeBody, model: ServedModel) -> tuple[int, ...]:
    if [body.content, body.prompt, body.messages].count(None) != 2:
        message = "Give exactly one of 'content', 'prompt' and 'messages'."
        raise InvalidRequest(message, param="content", code="invalid_value")
    if body.messages is not None:
        return model.prompts.tokens(checked_messages(body.messages))
    text = body.content if body.prompt is None else body.prompt
    assert text is not None, "one of the three is given"
    add_special = body.prompt is not None if body.add_special is None else body.add_special
    return tuple(model.tokenizer.encode(text, add_special=add_special, parse_special=True))


def _piece(token: int, tokenizer: Tokenizer) -> TokenPiece:
    raw = tokenizer.piece(token, special=True)
    try:
        return TokenPiece(token, raw.decode())
    except UnicodeDecodeError:
        return TokenPiece(token, tuple(raw))


def _text(body: DetokenizeBody, tokenizer: Tokenizer) -> str:
    check_tokens(tuple(body.tokens), vocab_size=tokenizer.vocab_size, param="tokens")
    return tokenizer.decode(body.tokens, special=True)
