"""What an engine tells those who choose between several: its expectations, and the prompts that it holds."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from openai_cpu_server.contract.cost import attended_pairs


class ByPriority(NamedTuple):
    """A figure for each priority: `figure[Priority.BATCH]`."""

    interactive: float = 0.0
    batch: float = 0.0


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What newcomers may expect of an engine, as its scheduler estimates it. Times are in milliseconds."""

    wait_ms: ByPriority = ByPriority()
    """Until a newcomer has a slot, and the prompts before its own are read."""
    token_ms: float
    """For each token of its prompt that is not cached, beside those who run now."""
    attended_ms: float = 0.0
    """For each pair of such a token and a cell before it."""
    stream_ms: tuple[float, ...] = ()
    """From one token to the next while 1, 2, 4, 8 and so on run, with contexts like those of now."""
    work_ms: ByPriority = ByPriority()
    """The time of all that was computed since the process started, had each step been full. Its rise in a
    second is the share of the engine that is used."""
    num_live: ByPriority = ByPriority()
    """Requests that run or wait."""

    def reading_ms(self, num_cached: int, num_tokens: int) -> float:
        """The time to read a prompt of `num_tokens` behind the first `num_cached`, which are cached."""
        num_read = max(0, num_tokens - num_cached)
        return self.token_ms * num_read + self.attended_ms * attended_pairs(num_cached, num_read)

    def step_ms(self, num_running: int) -> float:
        """From one token to the next while so many run; 0 where nobody does, or nothing is known."""
        if num_running < 1 or not self.stream_ms:
            return 0.0
        place = min(num_running.bit_length() - 1, len(self.stream_ms) - 2)
        fewer_ms, more_ms = self.stream_ms[place : place + 2]
        return fewer_ms + (more_ms - fewer_ms) * (num_running / (1 << place) - 1)


class PrefixNews(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine's prefix cache has changed since the news before: names of blocks (`block_hashes`)."""

    saved: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


class HeldUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica holds, for a router that may know an older version of that."""

    version: int
    """To be told with the next question."""
    is_whole: bool = False
    """`saved` is all that it holds: what was known before counts no more."""
    saved: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
