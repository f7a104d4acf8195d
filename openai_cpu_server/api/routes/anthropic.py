"""`POST /v1/messages` and `POST /v1/messages/count_tokens`, which are Anthropic's."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from openai_cpu_server.api.calls.call import Asking, Call, Prompt
from openai_cpu_server.api.render.anthropic import MessagesRenderer
from openai_cpu_server.api.resolve.chat import chat_prompt, resolve_chat
from openai_cpu_server.api.resolve.told_messages import (
    ToldBody,
    in_their_words,
    prompt_as_chat,
    skipped_tools,
    told_as_chat,
)
from openai_cpu_server.api.schemas.anthropic import CountBody, MessagesBody
from openai_cpu_server.api.schemas.parse import MOST_NAMED, Ignored, parse
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.models.served import ServedModel

B = TypeVar("B", bound=CountBody)


class MessagesFamily:
    renderer = MessagesRenderer()

    def read(self, data: bytes, *, lenient: bool) -> tuple[ToldBody, Ignored]:
        body, ignored = _read(MessagesBody, data, lenient=lenient)
        return told_as_chat(body), ignored

    def resolve(self, body: ToldBody, asking: Asking) -> Call:
        """Clients name the most that any model could write, so what the context leaves is enough."""
        open_ended = body.model_copy(update={"max_tokens": None})
        try:
            call = resolve_chat(open_ended, asking, id_prefix="msg_", names=body.names)
        except InvalidRequest as error:
            raise in_their_words(error, body.names) from None
        assert body.max_tokens is not None, "the schema demands it"
        return _limited(call, body.max_tokens, context=asking.info.context_limit)


class TokensCounted(msgspec.Struct, frozen=True):
    input_tokens: int


class MessagesCounting:
    def read(self, data: bytes, *, lenient: bool) -> tuple[ToldBody, Ignored]:
        body, ignored = _read(CountBody, data, lenient=lenient)
        return prompt_as_chat(body), ignored

    def prompt(self, body: ToldBody, model: ServedModel) -> Prompt:
        try:
            return chat_prompt(body, model)
        except InvalidRequest as error:
            raise in_their_words(error, body.names) from None

    def told(self, num_tokens: int) -> TokensCounted:
        return TokensCounted(num_tokens)


def _limited(call: Call, max_tokens: int, *, context: int) -> Call:
    (request,) = call.requests
    limited = msgspec.structs.replace(request, max_tokens=min(request.max_tokens, max_tokens))
    is_full = limited.max_tokens < max_tokens and len(request.tokens) + limited.max_tokens >= context
    asked_tokens = 0 if is_full else limited.max_tokens  # the limit that ends it, where it is the client's
    reuse = call.reuse and msgspec.structs.replace(call.reuse, asked_tokens=asked_tokens)
    return msgspec.structs.replace(
        call,
        requests=(limited,),
        max_output_tokens=limited.max_tokens,
        context_ends_it=is_full,
        reuse=reuse,
    )


def _read(schema: type[B], data: bytes, *, lenient: bool) -> tuple[B, Ignored]:
    body, ignored = parse(schema, data, lenient=lenient)
    return body, Ignored((*ignored.names, *skipped_tools(body)[:MOST_NAMED]))
