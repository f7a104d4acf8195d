"""The ways in which models write tool calls, and readers for them. Each format is a module."""

from __future__ import annotations

from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.tool_formats.base import ToolFormat
from openai_cpu_server.prompt.tool_formats.demo import DemoFormat
from openai_cpu_server.prompt.tool_formats.hermes import HermesFormat
from openai_cpu_server.prompt.tool_formats.llama3 import Llama3Format
from openai_cpu_server.prompt.tool_formats.mistral import MistralFormat
from openai_cpu_server.prompt.tool_formats.reader import (
    Content,
    OutputReader,
    Part,
    Reasoning,
    TextReader,
    ToolReader,
)
from openai_cpu_server.prompt.tool_formats.scanner import CallArguments, CallBegin

__all__ = [
    "TOOL_FORMATS",
    "CallArguments",
    "CallBegin",
    "Content",
    "OutputReader",
    "Part",
    "Reasoning",
    "TextReader",
    "ToolFormat",
    "ToolReader",
    "format_for",
]

_PLAIN = HermesFormat()
"""For models that were taught no format: it is plain text, and the most common one."""
_ALL: tuple[ToolFormat, ...] = (DemoFormat(), MistralFormat(), _PLAIN, Llama3Format())
TOOL_FORMATS = {each.name: each for each in _ALL}


def format_for(template: ChatTemplate) -> ToolFormat | None:
    """The format that the chat template teaches, or the plain one if it knows no tools.
    None: it teaches one that we do not know, so that the model would answer in that."""
    taught = next((each for each in _ALL if each.recognises(template.source)), None)
    return taught if taught is not None or template.shows_tools else _PLAIN
