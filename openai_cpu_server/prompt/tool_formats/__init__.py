"""Formats in which models write tool calls, as data (`forms.toml`) where possible, and their readers.

The API picks one by a model's template. No part of a call is reported as content.
"""

from __future__ import annotations

from openai_cpu_server.prompt.template import PromptTemplate
from openai_cpu_server.prompt.tool_formats.form import ToolFormat as ToolFormat
from openai_cpu_server.prompt.tool_formats.forms import FORMS, GENERIC
from openai_cpu_server.prompt.tool_formats.harmony import HarmonyFormat
from openai_cpu_server.prompt.tool_formats.harmony import HarmonyReader as HarmonyReader
from openai_cpu_server.prompt.tool_formats.patterns import CallArguments as CallArguments
from openai_cpu_server.prompt.tool_formats.patterns import CallBegin as CallBegin
from openai_cpu_server.prompt.tool_formats.patterns import Spelling as Spelling
from openai_cpu_server.prompt.tool_formats.reader import INPUT as INPUT
from openai_cpu_server.prompt.tool_formats.reader import Callee as Callee
from openai_cpu_server.prompt.tool_formats.reader import CallText as CallText
from openai_cpu_server.prompt.tool_formats.reader import Content as Content
from openai_cpu_server.prompt.tool_formats.reader import OutputReader as OutputReader
from openai_cpu_server.prompt.tool_formats.reader import Parameter as Parameter
from openai_cpu_server.prompt.tool_formats.reader import Part as Part
from openai_cpu_server.prompt.tool_formats.reader import TextCallReader as TextCallReader
from openai_cpu_server.prompt.tool_formats.reader import TextReader as TextReader
from openai_cpu_server.prompt.tool_formats.reader import ThinkingText as ThinkingText
from openai_cpu_server.prompt.tool_formats.reader import WrittenCall as WrittenCall

_TAUGHT: tuple[ToolFormat, ...] = (*FORMS.values(), HarmonyFormat("harmony"))
TOOL_FORMATS: dict[str, ToolFormat] = {each.name: each for each in (*_TAUGHT, GENERIC)}


def format_for(template: PromptTemplate | None) -> ToolFormat:
    if template is None:
        return GENERIC
    taught = (each for each in _TAUGHT if each.recognises(template.source))
    return next(taught, GENERIC)
