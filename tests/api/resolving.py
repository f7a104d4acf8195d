"""Bodies as JSON in, calls out, for the tests of resolving."""

from __future__ import annotations

import json

import pytest

from openai_cpu_server.api.call import Call
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.render.pieces import Pieces
from openai_cpu_server.api.resolve.calls import Circumstances
from openai_cpu_server.api.resolve.chat_prompts import ChatPrompts
from openai_cpu_server.api.resolve.grammars import Grammars
from openai_cpu_server.api.resolve.output import ToolOutputs
from openai_cpu_server.api.routes.chat import ChatFamily
from openai_cpu_server.api.routes.completions import CompletionFamily
from openai_cpu_server.api.routes.family import Resolved
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from openai_cpu_server.structured import Whitespace
from tests.api.fake_tokenizer import FakeTokenizer
from tests.fakes import FAKE_INFO

CONTEXT = FAKE_INFO.context_limit
OPTIONS = ApiOptions(model="fake", aliases=("other",), created=1, max_choices=8)
AROUND = Circumstances(FAKE_INFO, OPTIONS, None)


def chat(
    *, around: Circumstances = AROUND, template: str | None = FakeTokenizer.chat_template, **fields: object
) -> Call:
    return resolved_chat(around=around, template=template, **fields).call


def resolved_chat(
    *,
    around: Circumstances = AROUND,
    template: str | None = FakeTokenizer.chat_template,
    form: str | None = "demo",
    whitespace: Whitespace = Whitespace.COMPACT,
    **fields: object,
) -> Resolved:
    """`form`: the tool format; None where it is unknown."""
    tokenizer = FakeTokenizer()
    compiled = ChatTemplate(template, bos_text="<s>", eos_text="</s>") if template is not None else None
    tool_format = TOOL_FORMATS[form] if form is not None else None
    grammars = Grammars(GrammarCheck, whitespace)
    tools = ToolOutputs(tool_format, grammars, tokenizer) if tool_format is not None else None
    prompts = ChatPrompts(compiled, tokenizer, tool_format)
    family = ChatFamily(prompts, Pieces(tokenizer), grammars, tools)
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return family.resolve(json.dumps(body).encode(), around)


def complete(*, tokenizer: FakeTokenizer | None = None, **fields: object) -> Call:
    family = CompletionFamily(
        Pieces(tokenizer or FakeTokenizer()), Grammars(GrammarCheck, Whitespace.COMPACT)
    )
    return family.resolve(json.dumps({"prompt": "hi", **fields}).encode(), AROUND).call


def param_of(error: pytest.ExceptionInfo[InvalidRequest]) -> str | None:
    return error.value.param
