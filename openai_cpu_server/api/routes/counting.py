"""How many tokens a body's prompt has, for the families that are told as a chat's. Nothing is generated."""

from __future__ import annotations

from functools import partial
from typing import Generic, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.access.identity import identity_of
from openai_cpu_server.api.calls.call import Prompt
from openai_cpu_server.api.gates.fair_use import unkept_body
from openai_cpu_server.api.offload import in_thread, off_loop
from openai_cpu_server.api.resolve.answer_shape import is_slow
from openai_cpu_server.api.resolve.chat import chat_prompt
from openai_cpu_server.api.routes.models import json_response
from openai_cpu_server.api.schemas.chat import ChatBody
from openai_cpu_server.api.schemas.parse import Ignored, parse
from openai_cpu_server.models.abilities import Ability, choose_able
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ServedModel

F = TypeVar("F", bound=ChatBody)


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's answer of `/v1/responses/input_tokens`, and llama-server's of the one for chat."""

    object: str = "response.input_tokens"
    input_tokens: int


class CountedFamily(Protocol[F]):
    def read(self, data: bytes, *, lenient: bool) -> tuple[F, Ignored]:
        """The body, told as a chat's, and what of it is left out. Raises InvalidRequest."""
        ...

    def prompt(self, body: F, model: ServedModel) -> Prompt:
        """Raises InvalidRequest, TemplateFailed."""
        ...

    def told(self, num_tokens: int) -> msgspec.Struct: ...


class ChatCounting:
    """`POST /v1/chat/completions/input_tokens`."""

    def read(self, data: bytes, *, lenient: bool) -> tuple[ChatBody, Ignored]:
        return parse(ChatBody, data, lenient=lenient)

    def prompt(self, body: ChatBody, model: ServedModel) -> Prompt:
        return chat_prompt(body, model)

    def told(self, num_tokens: int) -> InputTokens:
        return InputTokens(input_tokens=num_tokens)


class CountRoute(Generic[F]):
    """It needs no engine."""

    def __init__(self, family: CountedFamily[F], models: ModelRegistry, *, lenient: bool) -> None:
        self._family = family
        self._models = models
        self._lenient = lenient

    async def count(self, request: Request) -> Response:
        data = await unkept_body(request)
        body, ignored = await off_loop(len(data), partial(self._family.read, data, lenient=self._lenient))
        model = self._model(body.model, request)
        prompt = await in_thread(partial(self._family.prompt, body, model), is_slow=is_slow(data))
        return json_response(self._family.told(len(prompt.tokens)), headers=ignored.headers)

    def _model(self, name: str | None, request: Request) -> ServedModel:
        """Raises ModelNotFound, WrongModelKind, RouterNotModel."""
        allowed = identity_of(request.scope).allowed_models
        return choose_able(self._models, name, allowed, Ability.GENERATE).model
