"""`POST /v1/chat/completions`."""

from __future__ import annotations

from openai_cpu_server.api.calls.call import Asking, Call
from openai_cpu_server.api.render.chat import ChatRenderer
from openai_cpu_server.api.resolve.chat import resolve_chat
from openai_cpu_server.api.schemas.chat import ChatBody
from openai_cpu_server.api.schemas.parse import Ignored, parse


class ChatFamily:
    renderer = ChatRenderer()

    def read(self, data: bytes, *, lenient: bool) -> tuple[ChatBody, Ignored]:
        return parse(ChatBody, data, lenient=lenient)

    def resolve(self, body: ChatBody, asking: Asking) -> Call:
        return resolve_chat(body, asking, id_prefix="chatcmpl-")
