"""What the rest of the house knows of a model's chat template. Who only knows this runs no jinja2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from openai_cpu_server.prompt.messages import CallShape


class Template(Protocol):
    """What a template shows was found out by trying, once."""

    source: str
    wants_parts: bool
    """Whether it shows a message's text only if the content is a list of parts."""
    shows_tools: bool
    """Whether it tells the model which tools there are."""
    shows_system: bool
    shows_system_tools: bool
    """Whether it shows tools that stand, as JSON, in a field of the system message."""
    call_shape: CallShape | None
    """How it wants earlier calls; None: it does not show them, or not their results."""

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt's text. Raises TemplateFailed."""
        ...
