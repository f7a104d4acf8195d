"""Describes the chat template of a model file."""

from __future__ import annotations

import msgspec

from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.reasoning.formats import reasoning_format_for
from openai_cpu_server.prompt.tool_formats import format_for

_KEY = "tokenizer.chat_template"


class Template(msgspec.Struct, frozen=True):
    source: str
    named: list[str]
    """The names of further templates in the file, such as `tool_use`."""
    tool_format: str | None
    """How calls are written; None: the template cannot be used."""
    shows_tools: bool
    """Whether the template tells the model which tools there are; else the server does."""
    reasoning_format: str | None
    """How thoughts are marked; None: the model does not think, as far as the template tells."""
    problem: str | None
    """Why the template cannot be used; None: it can."""


def read_template(header: GgufHeader) -> Template | None:
    source = template_source(header)
    if source is None:
        return None
    compiled, problem = _compiled(source)
    known = format_for(compiled) if compiled is not None else None
    thoughts = reasoning_format_for(compiled) if compiled is not None else None
    return Template(
        source=source,
        named=list(header.get_strings("tokenizer.chat_templates").values()),
        tool_format=known.name if known else None,
        shows_tools=compiled is not None and compiled.shows_tools,
        reasoning_format=thoughts.name if thoughts else None,
        problem=problem,
    )


def template_source(header: GgufHeader, name: str = "") -> str | None:
    """The source of a template. `name` is that of a further one; "": the one for chats."""
    return header.get_str(f"{_KEY}.{name}" if name else _KEY)


def _compiled(source: str) -> tuple[ChatTemplate | None, str | None]:
    try:
        return ChatTemplate(source, bos_text="", eos_text=""), None
    except StartupError as error:
        return None, str(error)
