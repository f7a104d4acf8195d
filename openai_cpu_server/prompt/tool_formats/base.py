"""What a way of writing tool calls has to say about itself."""

from __future__ import annotations

from typing import Protocol

from openai_cpu_server.prompt.tool_formats.reader import ToolReader


class ToolFormat(Protocol):
    """How a family of models writes calls. A call is always `{"name": ..., KEY: {...}}`."""

    @property
    def name(self) -> str:
        """What `--tool-format` calls it."""
        ...

    @property
    def marker(self) -> str:
        """What the calls begin with; "" if that is the first one's brace."""
        ...

    @property
    def marker_is_text(self) -> bool:
        """A grammar can spell the marker out; else it is a control token, which no text can make."""
        ...

    @property
    def arguments_key(self) -> str: ...

    def recognises(self, template: str) -> bool:
        """Whether a chat template (its source) teaches this way of writing."""
        ...

    def calls(self, *, several: bool) -> str:
        """GBNF of all that follows the marker, up to the output's end; `call` is the rule of one call."""
        ...

    def written(self, calls: str) -> str:
        """Calls as the model would have written them; `calls`: one JSON object per line."""
        ...

    def history_id(self, call_id: str) -> str:
        """The id of an earlier call as the template wants to see it."""
        ...

    def reader(self, *, at_start: bool = False) -> ToolReader:
        """Of one output. `at_start`: calls are its very beginning, or it has none."""
        ...
