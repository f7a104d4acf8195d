"""Mistral's format, up to tokenizer version 7: a control token, then a list of calls."""

from __future__ import annotations

import hashlib
import re

from openai_cpu_server.prompt.tool_formats.reader import ToolReader, marked_reader

_OWN_ID = re.compile(r"[A-Za-z0-9]{9}")


class MistralFormat:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`. Templates refuse ids in another form."""

    name = "mistral"
    marker = "[TOOL_CALLS]"
    marker_is_text = False
    arguments_key = "arguments"

    def recognises(self, template: str) -> bool:
        """Whether the template has this form.
        Newer models write `[TOOL_CALLS]name[ARGS]{...}`, which is another format."""
        return self.marker in template and "[ARGS]" not in template

    def calls(self, *, several: bool) -> str:
        more = '(("," | ", ") call)* ' if several else ""
        return f'("[" | " [") call {more}"]"'

    def written(self, calls: str) -> str:
        return f"{self.marker}[{', '.join(calls.splitlines())}]"

    def history_id(self, call_id: str) -> str:
        """An id of nine letters and digits: the call's own if it is one, else taken from a digest."""
        if _OWN_ID.fullmatch(call_id):
            return call_id
        return hashlib.sha256(call_id.encode()).hexdigest()[:9]

    def reader(self, *, at_start: bool = False) -> ToolReader:
        return marked_reader(self.marker, self.arguments_key, at_start=at_start)
