"""How one served model thinks, and what the server's options say about it."""

from __future__ import annotations

import msgspec

from openai_cpu_server.prompt.reasoning.formats import ReasoningFormat
from openai_cpu_server.prompt.reasoning.template import TemplateReasoning


class ModelThinking(msgspec.Struct, frozen=True):
    """`is_on` and `budget` are for requests that do not say."""

    template: TemplateReasoning
    is_on: bool | None = None
    """None: as the template has it."""
    budget: int | None = None
    """Tokens; None: any number."""

    @property
    def form(self) -> ReasoningFormat:
        return self.template.form
