"""What the API is told at its start; nothing here changes while it runs."""

from __future__ import annotations

import msgspec

from openai_cpu_server.api.access.addresses import Network
from openai_cpu_server.api.access.keys import Key
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import ModelNotFound


class ApiOptions(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    """The served model's name; a body without `model` means this one."""
    aliases: tuple[str, ...] = ()
    """Other names for the same model."""
    created: int
    """Unix time of the server's start, which `/v1/models` shows."""
    allowed: frozenset[str] | None = None
    """Of the names, those that the caller may use; None: all."""
    api_key: str | None = None
    """A key for everything, where the server has no other keys."""
    lenient: bool = False
    """Ignore unknown fields, and say so in the header `x-ignored-parameters`, instead of refusing them."""
    max_body_bytes: int = 32 * 1024 * 1024
    max_bodies_bytes: int = 256 * 1024 * 1024
    """Of all bodies that are being read, beyond the first 64 KiB of each."""
    max_file_bytes: int = 200 * 1024 * 1024
    """Of an upload; OpenAI's limit."""
    max_choices: int = 64
    """The largest `n` and `best_of`."""
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    """Of one sequence; also what one gets that asks for no number."""
    request_timeout_s: float | None = None
    """The longest that a call may take, waiting included."""
    read_timeout_s: float = 30.0
    """What a body may take, and a second more for each KiB of it."""
    cors_origins: tuple[str, ...] = ()
    """Pages of these origins may call from a browser; `*` is all."""
    trusted_proxies: tuple[Network, ...] = ()
    """Peers whose word is taken for where a request came from."""
    max_socket_requests: int = 64
    """Being served at once on one WebSocket."""
    max_sequences: int = 1024
    """The most that one call may ask for: its prompts times its choices."""
    default_priority: Priority = Priority.INTERACTIVE
    isolate_by_key: bool = False
    """Requests of different API keys share no computed prompts."""
    json_whitespace: str = "compact"
    """Of structured output: `compact` or `flexible`."""
    keep_alive_s: float = 10.0
    """Seconds between the comments that keep a silent stream open; 0 sends none."""

    @property
    def names(self) -> tuple[str, ...]:
        names = (self.model, *self.aliases)
        return names if self.allowed is None else tuple(name for name in names if name in self.allowed)

    def served(self, name: str | None) -> str:
        """The name to answer with. Raises ModelNotFound for a name that is not served."""
        names = self.names
        if name is None and names:
            return names[0]
        if name is None or name not in names:
            raise ModelNotFound(self.model if name is None else name)
        return name

    def seen_by(self, key: Key | None) -> ApiOptions:
        """As they are for the holder of a key."""
        if key is None or (key.priority is None and key.models is None):
            return self
        priority = self.default_priority if key.priority is None else key.priority
        return msgspec.structs.replace(self, default_priority=priority, allowed=key.models)
