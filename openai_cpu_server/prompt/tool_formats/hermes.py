"""The Hermes format, which Qwen and many others use: each call stands between tags."""

from __future__ import annotations

import re

from openai_cpu_server.prompt.tool_formats.reader import ToolReader, marked_reader

_KEY = re.compile(r'"arguments\\*"')
"""Matches the key in a template's text, or in a string of its program."""
_OTHERS = ("<function=", "<arg_key>")
"""What other formats write between the same tags."""


class HermesFormat:
    r"""`<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>`, once for each call."""

    name = "hermes"
    marker = "<tool_call>"
    marker_is_text = True
    arguments_key = "arguments"

    def recognises(self, template: str) -> bool:
        is_other = any(mark in template for mark in _OTHERS)
        return self.marker in template and _KEY.search(template) is not None and not is_other

    def calls(self, *, several: bool) -> str:
        one = r'"\n" call "\n</tool_call>"'
        return rf'{one} ("\n<tool_call>" {one})*' if several else one

    def written(self, calls: str) -> str:
        return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls.splitlines())

    def history_id(self, call_id: str) -> str:
        return call_id

    def reader(self, *, at_start: bool = False) -> ToolReader:
        return marked_reader(self.marker, self.arguments_key, at_start=at_start)
