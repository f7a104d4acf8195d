"""`POST /tokenize` and `POST /detokenize`, in the shapes of llama-server and vLLM at once."""

from __future__ import annotations

from functools import partial
from typing import Union

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.access.authentication import identity_of
from openai_cpu_server.api.offload import off_loop
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.parse import Ignored, parse
from openai_cpu_server.api.resolve.chat_prompts import ChatPrompts
from openai_cpu_server.api.resolve.sampling import check_tokens
from openai_cpu_server.api.routes.models import json_response
from openai_cpu_server.api.schemas.tokens import DetokenizeBody, TokenizeBody
from openai_cpu_server.contract.engine import Engine
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.errors import InvalidRequest


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
    """Needs no engine: the vocabulary is in this process."""

    def __init__(
        self, tokenizer: Tokenizer, prompts: ChatPrompts, engine: Engine, options: ApiOptions
    ) -> None:
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._engine = engine
        self._options = options

    async def tokenize(self, request: Request) -> Response:
        data = await request.body()
        options = self._options.seen_by(identity_of(request.scope).key)
        tokenized, ignored = await off_loop(len(data), partial(self._tokenize, data, options))
        return json_response(tokenized, headers=ignored.headers)

    async def detokenize(self, request: Request) -> Response:
        data = await request.body()
        options = self._options.seen_by(identity_of(request.scope).key)
        detokenized, ignored = await off_loop(len(data), partial(self._detokenize, data, options))
        return json_response(detokenized, headers=ignored.headers)

    def _tokenize(self, data: bytes, options: ApiOptions) -> tuple[Tokenized, Ignored]:
        body, ignored = parse(TokenizeBody, data, lenient=options.lenient)
        options.served(body.model)
        tokens = self._tokens(body)
        shown = tuple(self._piece(token) if body.with_pieces else token for token in tokens)
        info = self._engine.info
        return Tokenized(shown, len(tokens), info.context_limit if info else None), ignored

    def _tokens(self, body: TokenizeBody) -> tuple[int, ...]:
        if [body.content, body.prompt, body.messages].count(None) != 2:
            message = "Give exactly one of 'content', 'prompt' and 'messages'."
            raise InvalidRequest(message, param="content", code="invalid_value")
        if body.messages is not None:
            return self._prompts.tokens(body.messages)
        text = body.content if body.prompt is None else body.prompt
        assert text is not None, "one of the three is given"
        add_special = body.prompt is not None if body.add_special is None else body.add_special
        return tuple(self._tokenizer.encode(text, add_special=add_special, parse_special=True))

    def _piece(self, token: int) -> TokenPiece:
        raw = self._tokenizer.piece(token, special=True)
        try:
            return TokenPiece(token, raw.decode())
        except UnicodeDecodeError:
            return TokenPiece(token, tuple(raw))

    def _detokenize(self, data: bytes, options: ApiOptions) -> tuple[Detokenized, Ignored]:
        body, ignored = parse(DetokenizeBody, data, lenient=options.lenient)
        options.served(body.model)
        check_tokens(tuple(body.tokens), vocab_size=self._tokenizer.vocab_size, param="tokens")
        text = self._tokenizer.decode(body.tokens, special=True)
        return Detokenized(text, text), ignored
