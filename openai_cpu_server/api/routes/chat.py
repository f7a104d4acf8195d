"""`POST /v1/chat/completions`."""

from __future__ import annotations

from openai_cpu_server.api.call import Prompt
from openai_cpu_server.api.parse import parse
from openai_cpu_server.api.render.chat import ChatRenderer
from openai_cpu_server.api.render.pieces import Pieces
from openai_cpu_server.api.resolve.calls import Asked, Circumstances, resolve_call
from openai_cpu_server.api.resolve.chat_prompts import ChatPrompts
from openai_cpu_server.api.resolve.limits import asked_tokens
from openai_cpu_server.api.routes.family import Resolved
from openai_cpu_server.api.schemas.chat import ChatBody
from openai_cpu_server.errors import InvalidRequest


class ChatFamily:
    def __init__(self, prompts: ChatPrompts, pieces: Pieces) -> None:
        self._prompts = prompts
        self.renderer = ChatRenderer(pieces)

    def resolve(self, data: bytes, around: Circumstances) -> Resolved:
        body, ignored = parse(ChatBody, data, lenient=around.options.lenient)
        around.options.served(body.model)
        asked = Asked(
            id_prefix="chatcmpl-",
            prompt_param="messages",
            max_tokens=asked_tokens(body),
            logprobs=_logprobs(body),
        )
        prompt = Prompt(self._prompts.tokens(body.messages))
        return Resolved(resolve_call(body, [prompt], asked, around), ignored)


def _logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs is not None:
        message = "'top_logprobs' is only allowed together with 'logprobs'."
        raise InvalidRequest(message, param="top_logprobs", code="invalid_value")
    return None
