"""Counts what keys use over time, here or in a storage that several servers share.

What was used is the running window's count and as much of the one before as the sliding window still covers.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar, Union

import msgspec
from limits import RateLimitItem, RateLimitItemPerDay, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.errors import ConfigurationError, StorageError

from openai_cpu_server.errors import StartupError
from openai_cpu_server.storage.breaker import PAUSE_S, CircuitBreaker, NotAnswering


class Window(msgspec.Struct, frozen=True):
    """Times in seconds from now."""

    period_s: float
    previous: int = 0
    previous_left_s: float = 0.0
    """The time until nothing of the window before is covered."""
    current: int = 0
    current_left_s: float = 0.0
    """The time until nothing of the running window is covered: what is left of it, and one period more."""

    def remaining(self, limit: int) -> int:
        return max(0, limit - math.floor(self._used))

    @property
    def reset_s(self) -> float:
        """The time until nothing counts as used."""
        return self.current_left_s if self.current else self.previous_left_s if self.previous else 0.0

    def wait_s(self, cost: int, limit: int) -> float | None:
        """The time until `cost` more fits, if nobody else comes; None: it never will."""
        room = limit - cost + 1  # what is used counts in whole numbers, rounded down
        if room <= 0:
            return None
        if self._used < room:
            return 0.0
        if self.current < room:
            return self.previous_left_s - (room - self.current) * self.period_s / self.previous
        return self.current_left_s - self.period_s * room / self.current

    @property
    def _used(self) -> float:
        return self.previous * self.previous_left_s / self.period_s + self.current


T = TypeVar("T")
_Storage = Union[MemoryStorage, RedisStorage]
"""Where sliding windows are counted."""

_ANSWER_S = 1.0
"""The storage must answer in this time."""
_SCHEMES = ("redis://", "rediss://", "redis+unix://")


class Unit(enum.Enum):
    REQUESTS = "requests"
    TOKENS = "tokens"


class Period(enum.Enum):
    MINUTE = "min"
    DAY = "day"


class Quota(msgspec.Struct, frozen=True):
    """An amount that may be used in a period."""

    unit: Unit
    period: Period
    limit: int

    @property
    def label(self) -> str:
        """The quota's name as OpenAI writes it: `tokens per min (TPM)`."""
        unit, period = self.unit.value, self.period.value
        short = f"{unit[0]}P{period[0]}".upper()
        return f"{unit} per {period} ({short})"

    @property
    def item(self) -> RateLimitItem:
        kind = RateLimitItemPerMinute if self.period is Period.MINUTE else RateLimitItemPerDay
        return kind(self.limit, namespace=f"openai-cpu-server/{self.unit.value}")


class Meter:
    """What was counted here while Redis was away stays here: Redis goes on from what it knows."""

    def __init__(self, storage: _Storage) -> None:
        self._storage = storage
        self._meanwhile = MemoryStorage()
        self._breaker = CircuitBreaker(
            fails="the storage of rate limits fails (%s): this server counts alone meanwhile",
            back="the storage of rate limits is back",
            failure=_failure,
            answer_s=_ANSWER_S,
            pause_s=PAUSE_S,
        )

    @classmethod
    def open(cls, url: str | None) -> Meter:
        """`url` is `redis://...`; None counts in this process. Raises StartupError, which does not repeat the
        URL."""
        if url is None:
            return cls(MemoryStorage())
        if not url.startswith(_SCHEMES):
            raise StartupError("--limits-url: expected redis://HOST:PORT")
        try:
            return cls(
                RedisStorage(
                    "async+" + url,
                    wrap_exceptions=True,
                    implementation="redispy",
                    socket_timeout=_ANSWER_S,
                    socket_connect_timeout=_ANSWER_S,
                )
            )
        except ConfigurationError:
            raise StartupError("--limits-url needs: pip install 'openai-cpu-server[redis]'") from None
        except ValueError:
            raise StartupError("--limits-url: expected redis://HOST:PORT") from None

    async def take(self, quota: Quota, name: str, cost: int) -> bool:
        """Counts `cost` against the quota of this name. Returns False, and counts nothing, if there is no
        room."""
        item = quota.item
        key, period_s = item.key_for(name), item.get_expiry()
        return await self._ask(
            lambda storage: storage.acquire_sliding_window_entry(key, item.amount, period_s, cost)
        )

    async def give_back(self, quota: Quota, name: str, cost: int) -> None:
        """Takes back what `take` has counted, as far as it lies in the window that runs."""
        window = await self.window(quota, name)
        counted = min(cost, window.current)
        if counted > 0:
            await self.take(quota, name, -counted)

    async def window(self, quota: Quota, name: str) -> Window:
        """What is used."""
        key, period_s = quota.item.key_for(name), quota.item.get_expiry()
        return Window(period_s, *await self._ask(lambda storage: storage.get_sliding_window(key, period_s)))

    async def _ask(self, ask: Callable[[_Storage], Awaitable[T]]) -> T:
        try:
            return await self._breaker.ask(lambda: ask(self._storage))
        except NotAnswering:
            return await ask(self._meanwhile)


def _failure(error: Exception) -> str | None:
    """The kind of failure only: messages may hold the URL, and in it a password."""
    return type(error.__cause__ or error).__name__ if isinstance(error, (StorageError, OSError)) else None
