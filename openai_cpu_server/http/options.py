"""What the API is told at its start; nothing here changes while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from openai_cpu_server.contract.figures import Price
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.scheduling import Scheduling
from openai_cpu_server.http.clients import Network

_MULTIPART_BYTES = 64 * 1024
"""So many bytes may surround the file in the body of an upload."""


class SchedulingOptions(Scheduling, frozen=True, kw_only=True):
    """What the engines were told, for those who watch them."""

    max_queue: int


class MediaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What of pictures, sounds and files is taken."""

    max_bytes: int = 20 * 1024 * 1024
    max_pixels: int = 40_000_000
    max_sound_bytes: int = 25 * 1024 * 1024
    max_sound_s: float = 1200.0
    """Of all sounds of a conversation together."""
    max_items: int = 32
    """Pictures and sounds in one conversation, and files in it."""
    max_document_chars: int = 4 * 1024 * 1024
    """Of all files of a conversation together."""
    domains: tuple[str, ...] = ()
    """What URLs may name; `*.example.org` is all below that, `*` is any."""
    folder: Path | None = None
    """What `file:` may name is below this."""
    fetch_timeout_s: float = 20.0

    @property
    def max_pixels_together(self) -> int:
        """Of all pictures of a conversation: ten photos of 12 million each, by default."""
        return 3 * self.max_pixels


class ApiOptions(msgspec.Struct, frozen=True, kw_only=True):
    api_key: str | None = None
    """A key for everything, where the server has no other keys."""
    lenient: bool = False
    """Ignore unknown fields, and say so in the header `x-ignored-parameters`, instead of refusing them."""
    max_body_bytes: int = 32 * 1024 * 1024
    max_bodies_bytes: int = 256 * 1024 * 1024
    """The limit for all bodies that are being read, beyond the first 64 KiB of each."""
    max_file_bytes: int = 200 * 1024 * 1024
    """The limit for an upload; OpenAI's."""
    max_choices: int = 64
    """The largest `n` and `best_of`."""
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    """The limit for one sequence; also what one gets that asks for no number."""
    request_timeout_s: float | None = None
    """The longest that a call may take, waiting included."""
    read_timeout_s: float = 30.0
    """The time that a body may take; each KiB of it buys a second more."""
    cors_origins: tuple[str, ...] = ()
    """Pages of these origins may call from a browser; `*` is all."""
    hosts: frozenset[str] | None = None
    """The names that the server goes by, beside its addresses; None: any."""
    is_admin_open: bool = True
    """Without keys everybody is an administrator; False: whoever calls from this machine is."""
    trusted_proxies: tuple[Network, ...] = ()
    """Peers that are believed about where a request came from."""
    max_socket_requests: int = 64
    """Requests of one WebSocket that are served at once."""
    max_sequences: int = 1024
    """The most that one call may ask for: its prompts times its choices."""
    default_priority: Priority = Priority.INTERACTIVE
    isolate_by_key: bool = False
    """Requests of different API keys share no computed prompts."""
    compares_turns: bool = False
    """Answers to similar questions are kept."""
    prices: Mapping[str, Price] = {}
    """By model."""
    scheduling: SchedulingOptions | None = None
    """None: nobody has said."""
    page: bool = True
    """There is a page for browsers."""
    media: MediaOptions = MediaOptions()
    keep_streams_s: float = 300.0
    """So long a stream that a client names goes on without it, and is kept when it has ended; 0: none is."""
    keep_alive_s: float = 10.0
    """Seconds between the comments that keep a silent stream open; 0 sends none."""

    @property
    def max_upload_bytes(self) -> int:
        """The limit for the whole body of an upload."""
        return self.max_file_bytes + _MULTIPART_BYTES
