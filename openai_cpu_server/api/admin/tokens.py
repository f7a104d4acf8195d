"""`POST /tokenize` and `POST /detokenize`, in the shapes of llama-server and vLLM at once."""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar, TypeVar, Union

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.asking.ask import LONG_BODY
from openai_cpu_server.api.asking.sampling import check_tokens
from openai_cpu_server.api.chat.body import Messages, checked_messages
from openai_cpu_server.api.parts import ServerParts
from openai_cpu_server.contract.model_info import ModelKind, Tokenizer
from openai_cpu_server.errors import wrong
from openai_cpu_server.http.body import in_thread, off_loop, unkept_body
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.keys import WORK
from openai_cpu_server.http.parse import Body, Ignored, parse
from openai_cpu_server.http.routes import RouteRoom, RouteRow
from openai_cpu_server.json_size import MOST_TOKENS
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.prompt.chat_prompts import Conversation, require_room, whole_prompt


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


B = TypeVar("B", bound=Body)
_SLICE = 10_000
"""So many pieces are written at once: nobody else has the interpreter meanwhile."""


class TokenPiece(msgspec.Struct, frozen=True):
    id: int
    piece: Union[str, tuple[int, ...]]
    """Text, or the bytes where they are no text by themselves."""


class Tokenized(msgspec.Struct, frozen=True):
    tokens: msgspec.Raw
    """Numbers, or `TokenPiece`s."""
    count: int
    max_model_len: int | None


class Detokenized(msgspec.Struct, frozen=True):
    content: str
    prompt: str


class TokenRoutes:
    """They need no engine."""

    def __init__(self, models: ModelRegistry, *, lenient: bool) -> None:
        self._models = models
        self._lenient = lenient

    async def tokenize(self, request: Request) -> Response:
        data = await unkept_body(request)
        body, ignored = await self._read(TokenizeBody, data)
        model = self._model(body.model, request)
        info = model.engine.info
        limit = info.context_limit if info else None
        answer = await in_thread(partial(_tokenized, body, model, limit), is_slow=len(data) > LONG_BODY)
        return Response(answer, media_type="application/json", headers=ignored.headers)

    async def detokenize(self, request: Request) -> Response:
        data = await unkept_body(request)
        body, ignored = await self._read(DetokenizeBody, data)
        model = self._model(body.model, request)
        answer = await off_loop(len(data), partial(_detokenized, body, model))
        return Response(answer, media_type="application/json", headers=ignored.headers)

    async def _read(self, schema: type[B], data: bytes) -> tuple[B, Ignored]:
        return await off_loop(len(data), partial(parse, schema, data, lenient=self._lenient))

    def _model(self, name: str | None, request: Request) -> ServedModel:
        return self._models.choose(name, context_of(request.scope).identity.allowed_models).model


def _tokenized(body: TokenizeBody, model: ServedModel, limit: int | None) -> bytes:
    """The answer, made in this thread: with its pieces it can be of many times the body's size."""
    tokens = _tokens(body, model, limit)
    if body.with_pieces:
        written = b",".join(
            msgspec.json.encode([_piece(token, model.tokenizer) for token in tokens[at : at + _SLICE]])[1:-1]
            for at in range(0, len(tokens), _SLICE)
        )
        shown = msgspec.Raw(b"[" + written + b"]")
    else:
        shown = msgspec.Raw(msgspec.json.encode(tokens))
    return msgspec.json.encode(Tokenized(shown, len(tokens), limit))


def _tokens(body: TokenizeBody, model: ServedModel, limit: int | None) -> tuple[int, ...]:
    if [body.content, body.prompt, body.messages].count(None) != 2:
        raise wrong("Give exactly one of 'content', 'prompt' and 'messages'.", "content")
    if body.messages is not None:
        messages = checked_messages(body.messages)
        return model.prompts.prompt(Conversation(messages=messages, most_tokens=limit)).tokens
    text = body.content if body.prompt is None else body.prompt
    assert text is not None, "one of the three is given"
    add_special = body.prompt is not None if body.add_special is None else body.add_special
    if model.kind is not ModelKind.GENERATES:  # as for embeddings and reranking, whose texts are no prompts
        require_room(model.tokenizer, text, limit)
        return tuple(model.tokenizer.encode(text, add_special=add_special, parse_special=False))
    return whole_prompt(text, model.tokenizer, add_special=add_special, most_tokens=limit)


def _piece(token: int, tokenizer: Tokenizer) -> TokenPiece:
    raw = tokenizer.piece(token, special=True)
    try:
        return TokenPiece(token, raw.decode())
    except UnicodeDecodeError:
        return TokenPiece(token, tuple(raw))


def _detokenized(body: DetokenizeBody, model: ServedModel) -> bytes:
    check_tokens(tuple(body.tokens), vocab_size=model.tokenizer.vocab_size, param="tokens")
    text = model.tokenizer.decode(body.tokens, special=True)
    return msgspec.json.encode(Detokenized(text, text))


_row = partial(RouteRow[TokenRoutes], access=WORK, tag="Tokens")
_rows = (
    _row(
        "POST",
        "/tokenize",
        lambda at: at.tokenize,
        summary="Text or messages as tokens",
        body=TokenizeBody,
        answer=Tokenized,
        errors=(404,),
    ),
    _row(
        "POST",
        "/detokenize",
        lambda at: at.detokenize,
        summary="Tokens as text",
        body=DetokenizeBody,
        answer=Detokenized,
        errors=(404,),
    ),
)
ROOM = RouteRoom[ServerParts, TokenRoutes](
    lambda parts: TokenRoutes(parts.models, lenient=parts.options.lenient), _rows
)
