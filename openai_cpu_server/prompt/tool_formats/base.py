"""The protocol of a way to write tool calls."""

from __future__ import annotations

from typing import Protocol

from openai_cpu_server.prompt.tool_formats.reader import ToolReader


class ToolFormat(Protocol):
    """How a family of models writes calls. A call is always `{"name": ..., KEY: {...}}`."""

    @property
    def name(self) -> str:
        """The name in `--tool-format`."""
        ...

    @property
    def marker(self) -> str:
        """The text with which the calls begin; "" if that is the first call's brace."""
        ...

    @property
    def marker_is_text(self) -> bool:
        """Whether a grammar can spell the marker; else it is a control token, which no text can make."""
        ...

    @property
    def arguments_key(self) -> str: ...

    def recognises(self, template: str) -> bool:
        """Whether the source of a chat template teaches this format."""
        ...

    def calls(self, *, several: bool) -> str:
        """GBNF for everything behind the marker, up to the output's end. `call` is the rule for one call."""
        ...

    def written(self, calls: str) -> str:
        """Calls as the model would have written them. `calls` are JSON objects, one to a line."""
        ...

    def history_id(self, call_id: str) -> str:
        """The id of an earlier call, in the form that the template wants."""
        ...

    def reader(self, *, at_start: bool = False) -> ToolReader:
        """A reader for one output. With `at_start` the output begins with calls or has none."""
        ...
