"""How many tokens a conversation's prompt has. Nothing is generated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.offload import in_thread, off_loop
from openai_cpu_server.api.resolve.call import prompt_tokens
from openai_cpu_server.api.routes.generation import BodyReader
from openai_cpu_server.http.body import unkept_body
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.replies import json_response
from openai_cpu_server.models.abilities import Ability, choose_able
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ServedModel


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's answer of `/v1/responses/input_tokens`, and llama-server's of the one for chat."""

    object: str = "response.input_tokens"
    input_tokens: int


def input_tokens(num_tokens: int) -> InputTokens:
    return InputTokens(input_tokens=num_tokens)


class CountRoute:
    """It needs no engine."""

    def __init__(
        self,
        reader: BodyReader[Any],
        models: ModelRegistry,
        *,
        lenient: bool,
        told: Callable[[int], msgspec.Struct] = input_tokens,
    ) -> None:
        self._reader = reader
        self._models = models
        self._lenient = lenient
        self._told = told

    async def count(self, request: Request) -> Response:
        data = await unkept_body(request)
        ask = await off_loop(len(data), partial(self._reader.read, data, lenient=self._lenient))
        model = self._model(ask.model, request)
        num_tokens = await in_thread(partial(prompt_tokens, ask, model), is_slow=ask.is_slow)
        return json_response(self._told(num_tokens), headers=ask.ignored.headers)

    def _model(self, name: str | None, request: Request) -> ServedModel:
        """Raises ModelNotFound, WrongModelKind, RouterNotModel."""
        allowed = context_of(request.scope).identity.allowed_models
        return choose_able(self._models, name, allowed, Ability.GENERATE).model
