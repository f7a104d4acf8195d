"""What the API is told at its start; nothing here changes while it runs."""

from __future__ import annotations

import msgspec

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import ModelNotFound


class ApiOptions(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    """The served model's name; a body without `model` means this one."""
    aliases: tuple[str, ...] = ()
    """Other names for the same model."""
    created: int
    """Unix time of the server's start, which `/v1/models` shows."""
    api_key: str | None = None
    lenient: bool = False
    """Ignore unknown fields, and say so in the header `x-ignored-parameters`, instead of refusing them."""
    max_body_bytes: int = 32 * 1024 * 1024
    max_choices: int = 64
    """The largest `n` and `best_of`."""
    max_sequences: int = 1024
    """The most that one call may ask for: its prompts times its choices."""
    default_priority: Priority = Priority.INTERACTIVE
    isolate_by_key: bool = False
    """Requests of different API keys share no computed prompts."""
    keep_alive_s: float = 10.0
    """Seconds between the comments that keep a silent stream open; 0 sends none."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.model, *self.aliases)

    def served(self, name: str | None) -> str:
        """The name to answer with. Raises ModelNotFound for a name that is not served."""
        if name is None:
            return self.model
        if name not in self.names:
            raise ModelNotFound(name)
        return name
