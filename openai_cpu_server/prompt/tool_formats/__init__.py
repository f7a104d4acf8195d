"""The ways in which models write tool calls, and readers for them."""

from __future__ import annotations

from openai_cpu_server.prompt.template import Template
from openai_cpu_server.prompt.tool_formats.base import Callee, Parameter, ToolFormat, WrittenCall
from openai_cpu_server.prompt.tool_formats.forms import FORMS, GENERIC
from openai_cpu_server.prompt.tool_formats.harmony import HarmonyFormat, HarmonyReader
from openai_cpu_server.prompt.tool_formats.patterns import Spelling
from openai_cpu_server.prompt.tool_formats.reader import (
    Content,
    OutputReader,
    Part,
    Reasoning,
    TextReader,
)
from openai_cpu_server.prompt.tool_formats.scanner import CallArguments, CallBegin

__all__ = [
    "TOOL_FORMATS",
    "CallArguments",
    "CallBegin",
    "Callee",
    "Content",
    "HarmonyReader",
    "OutputReader",
    "Parameter",
    "Part",
    "Reasoning",
    "Spelling",
    "TextReader",
    "ToolFormat",
    "WrittenCall",
    "format_for",
]

_TAUGHT: tuple[ToolFormat, ...] = (*FORMS, HarmonyFormat())
TOOL_FORMATS: dict[str, ToolFormat] = {each.name: each for each in (*_TAUGHT, GENERIC)}


def format_for(template: Template | None) -> ToolFormat:
    """The format that the chat template teaches; the generic one if it knows no tools, or shows them for a
    format that is unknown here."""
    if template is None:
        return GENERIC
    taught = (each for each in _TAUGHT if each.recognises(template.source))
    return next(taught, GENERIC)
