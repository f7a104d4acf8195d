"""Use of keys over time, counted here or in a storage that several servers share. A sliding window covers
the current window and a part of the one before."""

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
    """Time until the previous window is no longer covered."""
    current: int = 0
    current_left_s: float = 0.0
    """Time until the current window is no longer covered, which is its rest and one period."""

    def remaining(self, limit: int) -> int:
        return max(0, limit - math.floor(self._used))

    @property
    def reset_s(self) -> float:
        return self.current_left_s if self.current else self.previous_left_s if self.previous else 0.0

    def wait_s(self, cost: int, limit: int) -> float | None:
        """Return the time until `cost` more fits without other requests, or None for never."""
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

_ANSWER_S = 1.0
_SCHEMES = ("redis://", "rediss://", "redis+unix://")


class Unit(enum.Enum):
    REQUESTS = "requests"
    TOKENS = "tokens"


class Period(enum.Enum):
    MINUTE = "min"
    DAY = "day"


class Quota(msgspec.Struct, frozen=True):
    unit: Unit
    period: Period
    limit: int

    @property
    def label(self) -> str:
        unit, period = self.unit.value, self.period.value
        short = f"{unit[0]}P{period[0]}".upper()
        return f"{unit} per {period} ({short})"

    @property
    def item(self) -> RateLimitItem:
        kind = RateLimitItemPerMinute if self.period is Period.MINUTE else RateLimitItemPerDay
        return kind(self.limit, namespace=f"openai-cpu-server/{self.unit.value}")


class Meter:
    """Counts in memory while Redis is away. Redis does not get those counts later."""

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
        """Open the storage at `redis://...`, or None for memory. Raises StartupError, without the URL."""
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
        """Count `cost`. Return False, and count nothing, if there is no room."""
        item = quota.item
        key, period_s = item.key_for(name), item.get_expiry()
        return await self._ask(
            lambda storage: storage.acquire_sliding_window_entry(key, item.amount, period_s, cost)
        )

    async def give_back(self, quota: Quota, name: str, cost: int) -> None:
        """Undo `take`, as far as it lies in the current window."""
        window = await self.window(quota, name)
        counted = min(cost, window.current)
        if counted > 0:
            await self.take(quota, name, -counted)

    async def window(self, quota: Quota, name: str) -> Window:
        key, period_s = quota.item.key_for(name), quota.item.get_expiry()
        return Window(period_s, *await self._ask(lambda storage: storage.get_sliding_window(key, period_s)))

    async def _ask(self, ask: Callable[[_Storage], Awaitable[T]]) -> T:
        try:
            return await self._breaker.ask(lambda: ask(self._storage))
        except NotAnswering:
            return await ask(self._meanwhile)


def _failure(error: Exception) -> str | None:
    """Return only the kind, because messages may hold the URL with a password."""
    return type(error.__cause__ or error).__name__ if isinstance(error, (StorageError, OSError)) else None
