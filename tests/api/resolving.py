"""Resolves the fields of JSON bodies, for the tests of resolving."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from openai_cpu_server.api.chat.routes import CHAT
from openai_cpu_server.api.completions.routes import COMPLETIONS
from openai_cpu_server.api.generation.attachments import without_unsupported
from openai_cpu_server.api.generation.call import ResolveContext, ResolvedRequest
from openai_cpu_server.api.generation.params import GenerationParams
from openai_cpu_server.api.generation.resolve import resolve
from openai_cpu_server.api.generation.route import ApiAdapter
from openai_cpu_server.api.responses.conversation import current, to_messages, with_instructions
from openai_cpu_server.api.responses.schema import ResponsesBody
from openai_cpu_server.api.responses.to_params import new_items, to_params
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.http.context import Caller
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.parse import parse
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ModelThinking, ServedModel
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.fake_engine import FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.serving import served
from tests.fakes import FAKE_INFO
from tests.reading import model_read_here

CONTEXT = FAKE_INFO.context_limit
OPTIONS = ApiOptions(max_choices=8)


def chat(
    *,
    caller: Caller = Caller(),  # noqa: B008 (frozen)
    template: str | None = FakeTokenizer.chat_template,
    form: str = "demo",
    tokenizer: FakeTokenizer | None = None,
    is_flexible: bool = False,
    is_open: bool = False,
    thinking: ModelThinking | None = None,
    info: ModelInfo = FAKE_INFO,
    **fields: object,
) -> ResolvedRequest:
    """Resolve a chat. `form`: the tool format."""
    model = model_read_here(
        names=("fake", "other"),
        engine=FakeEngine(),
        tokenizer=tokenizer or FakeTokenizer(),
        template=ChatTemplate(template, bos_text="<s>", eos_text="</s>") if template is not None else None,
        tool_format=TOOL_FORMATS[form],
        is_flexible=is_flexible,
        is_open=is_open,
        thinking=thinking,
    )
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return resolved(CHAT, model, body, caller, info)


def complete(*, tokenizer: FakeTokenizer | None = None, **fields: object) -> ResolvedRequest:
    models = served(FakeEngine(), tokenizer=tokenizer)
    return resolved(COMPLETIONS, models.default, {"prompt": "hi", **fields}, Caller())


class Responses:
    """Reads bodies of `/v1/responses` that begin a conversation."""

    def read(self, data: bytes, *, lenient: bool) -> GenerationParams:
        body, _ = parse(ResponsesBody, data, lenient=lenient)
        return to_params(
            body, with_instructions(to_messages(current(new_items(body.input, {}))), body.instructions)
        )


def resolved(
    family: ApiAdapter[Any] | Responses,
    model: ServedModel,
    fields: Mapping[str, object],
    caller: Caller,
    info: ModelInfo = FAKE_INFO,
) -> ResolvedRequest:
    """Resolve the fields for a model that takes neither pictures nor sounds."""
    params = without_unsupported(family.read(json.dumps(fields).encode(), lenient=False))
    chosen = ModelRegistry([model]).choose(params.model, None)
    return resolve(params, ResolveContext(chosen, info, caller, OPTIONS))


def refused(resolve_body: Callable[..., object] = chat, **fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        resolve_body(**fields)
    return caught.value
