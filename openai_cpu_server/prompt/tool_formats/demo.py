"""The demo model's format: a control token, then one call per line."""

from __future__ import annotations

from openai_cpu_server.prompt.tool_formats.reader import ToolReader, marked_reader


class DemoFormat:
    """`<|tool_call|>{"name": ..., "arguments": {...}}`; further calls follow line breaks."""

    name = "demo"
    marker = "<|tool_call|>"
    marker_is_text = False
    arguments_key = "arguments"

    def recognises(self, template: str) -> bool:
        """Whether the template has the marker and is not Granite's, which
        writes a list behind the same marker."""
        return self.marker in template and "<|start_of_role|>" not in template

    def calls(self, *, several: bool) -> str:
        return r'call ("\n" call)*' if several else "call"

    def written(self, calls: str) -> str:
        return self.marker + calls

    def history_id(self, call_id: str) -> str:
        return call_id

    def reader(self, *, at_start: bool = False) -> ToolReader:
        return marked_reader(self.marker, self.arguments_key, at_start=at_start)
