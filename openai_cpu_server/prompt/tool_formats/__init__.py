"""The ways in which models write tool calls, and readers for them. Each format is a module."""

from __future__ import annotations

from openai_cpu_server.prompt.tool_formats.base import ToolFormat
from openai_cpu_server.prompt.tool_formats.demo import DemoFormat
from openai_cpu_server.prompt.tool_formats.hermes import HermesFormat
from openai_cpu_server.prompt.tool_formats.llama3 import Llama3Format
from openai_cpu_server.prompt.tool_formats.mistral import MistralFormat
from openai_cpu_server.prompt.tool_formats.reader import Content, Part, ToolReader
from openai_cpu_server.prompt.tool_formats.scanner import CallArguments, CallBegin

__all__ = [
    "TOOL_FORMATS",
    "CallArguments",
    "CallBegin",
    "Content",
    "Part",
    "ToolFormat",
    "ToolReader",
    "recognised",
]

_ALL: tuple[ToolFormat, ...] = (DemoFormat(), MistralFormat(), HermesFormat(), Llama3Format())
TOOL_FORMATS = {each.name: each for each in _ALL}


def recognised(template: str) -> ToolFormat | None:
    """The format that a chat template's source teaches; None if we do not know it."""
    return next((each for each in _ALL if each.recognises(template)), None)
