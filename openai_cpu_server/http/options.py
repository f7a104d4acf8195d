from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from openai_cpu_server.contract.figures import Price
from openai_cpu_server.contract.messages import Scheduling
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.http.keys import Network

_MULTIPART_BYTES = 64 * 1024
"""Parts around the file in an upload's body."""


class SchedulingOptions(Scheduling, frozen=True, kw_only=True):
    max_queue: int


class MediaOptions(msgspec.Struct, frozen=True, kw_only=True):
    max_bytes: int = 20 * 1024 * 1024
    max_pixels: int = 40_000_000
    max_sound_bytes: int = 25 * 1024 * 1024
    max_sound_s: float = 7200.0
    """Total of a conversation."""
    max_items: int = 32
    """Pictures and sounds of a conversation, and separately its files."""
    max_document_chars: int = 4 * 1024 * 1024
    """Total of a conversation's files."""
    domains: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    folder: Path | None = None
    """Root of `file:` URLs."""
    fetch_timeout_s: float = 20.0

    @property
    def max_pixels_together(self) -> int:
        """Ten photos of 12 million pixels per conversation by default."""
        return 3 * self.max_pixels


class ApiOptions(msgspec.Struct, frozen=True, kw_only=True):
    api_key: str | None = None
    lenient: bool = False
    """Name unknown fields in `x-ignored-parameters`, instead of rejecting them."""
    max_body_bytes: int = 32 * 1024 * 1024
    max_bodies_bytes: int = 256 * 1024 * 1024
    """Bodies that are being read, beyond the first 64 KiB of each."""
    max_file_bytes: int = 200 * 1024 * 1024
    max_choices: int = 64
    max_prompt_tokens: int | None = None
    output_token_cap: int | None = None
    """Limit for one sequence, whatever its request names."""
    end_loops: bool = True
    """End free answers that repeat the same tokens without an end."""
    request_timeout_s: float | None = None
    """Limit for a call, waiting included."""
    read_timeout_s: float = 30.0
    """Body's time, plus one second per KiB."""
    cors_origins: tuple[str, ...] = ()
    hosts: frozenset[str] | None = None
    """Server's names beside its addresses, or None for any."""
    is_admin_open: bool = True
    """True makes all clients administrators, False those on this machine, on servers without keys."""
    trusted_proxies: tuple[Network, ...] = ()
    """Peers whose headers name the caller."""
    max_socket_requests: int = 64
    max_sequences: int = 1024
    default_priority: Priority = Priority.INTERACTIVE
    isolate_by_key: bool = False
    """Different API keys share no cached prefixes."""
    compares_turns: bool = False
    """Answers to similar questions are cached."""
    prices: Mapping[str, Price] = {}
    scheduling: SchedulingOptions | None = None
    page: bool = True
    media: MediaOptions = MediaOptions()
    keep_streams_s: float = 300.0
    """Time that a named stream continues without its client and is kept after its end, or 0."""
    keep_alive_s: float = 10.0
    """Pause between comments in a silent stream, or 0 for none."""

    @property
    def max_upload_bytes(self) -> int:
        return self.max_file_bytes + _MULTIPART_BYTES
