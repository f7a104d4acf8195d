"""Llama 3's JSON format: an output that begins with a brace consists of calls.

The model may write `<|python_tag|>` before them, which adds no meaning. The grammar leaves it out, as it
rules from the first token on.
"""

from __future__ import annotations

from openai_cpu_server.prompt.tool_formats.reader import FirstGate, ToolReader


class Llama3Format:
    """`{"name": ..., "parameters": {...}}`; further calls follow `; `."""

    name = "llama3"
    marker = ""
    marker_is_text = True
    arguments_key = "parameters"

    def recognises(self, template: str) -> bool:
        return "<|start_header_id|>" in template and '"parameters": ' in template

    def calls(self, *, several: bool) -> str:
        return 'call ("; " call)*' if several else "call"

    def written(self, calls: str) -> str:
        return "; ".join(calls.splitlines())

    def history_id(self, call_id: str) -> str:
        return call_id

    def reader(self, *, at_start: bool = False) -> ToolReader:
        """A reader for one output. Calls are always at its start."""
        return ToolReader(FirstGate("{"), self.arguments_key)
