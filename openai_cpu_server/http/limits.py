"""A call's prompt and `max_tokens` must fit the limits. The prompt is counted when the call begins, the real
output when it ends."""

from __future__ import annotations

import asyncio
import enum
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar, Union

import msgspec
from limits import RateLimitItem, RateLimitItemPerDay, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.errors import ConfigurationError, StorageError

from openai_cpu_server.errors import MissingExtra, RequestsLimited, StartupError, TokensLimited
from openai_cpu_server.http.keys import Allowance, Key
from openai_cpu_server.storage.breaker import PAUSE_S, CircuitBreaker, NotAnswering


class Window(msgspec.Struct, frozen=True):
    """Times in seconds from now."""

    period_s: float
    previous: int = 0
    previous_left_s: float = 0.0
    current: int = 0
    current_left_s: float = 0.0
    """Rest of the current window and one period."""

    def remaining(self, limit: int) -> int:
        return max(0, limit - math.floor(self._used))

    @property
    def reset_s(self) -> float:
        return self.current_left_s if self.current else self.previous_left_s if self.previous else 0.0

    def wait_s(self, cost: int, limit: int) -> float | None:
        """Return the time until `cost` more fits, or None for never."""
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

    def __init__(self, storage: _Storage, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage = storage
        self._fallback = MemoryStorage()
        self._breaker = CircuitBreaker(
            fails="the storage of rate limits fails (%s): this server counts alone until it is back",
            back="the storage of rate limits is back",
            # Only the kind, because messages may hold the URL with a password.
            failure=lambda error: (
                type(error.__cause__ or error).__name__ if isinstance(error, StorageError | OSError) else None
            ),
            answer_s=_ANSWER_S,
            pause_s=PAUSE_S,
            clock=clock,
        )

    @classmethod
    def open(cls, url: str | None, clock: Callable[[], float] = time.monotonic) -> Meter:
        """Open `redis://...`, or None for memory. Raises StartupError, without the URL."""
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
                ),
                clock,
            )
        except ConfigurationError:
            raise MissingExtra("--limits-url needs", "redis") from None
        except ValueError:
            raise StartupError("--limits-url: expected redis://HOST:PORT") from None

    async def take(self, quota: Quota, name: str, cost: int) -> bool:
        """Return False, and count nothing, if `cost` does not fit."""
        item = quota.item
        key, period_s = item.key_for(name), item.get_expiry()
        return await self._call(
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
        return Window(period_s, *await self._call(lambda storage: storage.get_sliding_window(key, period_s)))

    async def _call(self, operation: Callable[[_Storage], Awaitable[T]]) -> T:
        try:
            return await self._breaker.ask(lambda: operation(self._storage))
        except NotAnswering:
            return await operation(self._fallback)


NAMES = tuple(
    f"x-ratelimit-{what}-{unit}"
    for unit in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
)


def limit_headers(quota: Quota, window: Window, *, held: int) -> dict[str, str]:
    """`held`: tokens that running calls may still use."""
    unit = quota.unit.value
    return {
        f"x-ratelimit-limit-{unit}": str(quota.limit),
        f"x-ratelimit-remaining-{unit}": str(max(0, window.remaining(quota.limit) - held)),
        f"x-ratelimit-reset-{unit}": duration(window.reset_s),
    }


def duration(seconds: float) -> str:
    """Return `12ms`, `1.5s`, `6m0s` or `23h59m1s`, rounded up."""
    milliseconds = math.ceil(1000 * seconds)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"


_CONCURRENT_RETRY_S = 1.0
_QUOTAS = {
    "requests_per_minute": (Unit.REQUESTS, Period.MINUTE),
    "tokens_per_minute": (Unit.TOKENS, Period.MINUTE),
    "tokens_per_day": (Unit.TOKENS, Period.DAY),
}


@dataclass
class _Account:
    num_running: int = 0
    held_tokens: int = 0
    """Output tokens that running calls may still produce."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from checking tokens until they are counted."""


class RateLimits:
    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._accounts: dict[str, _Account] = {}

    def reservation(self, key: Key | None, *, takes_place: bool = True) -> Reservation:
        """`takes_place`: counts in `concurrent`."""
        name = key.name if key else ""
        allowance = key.allowance if key else Allowance()
        if not takes_place:
            allowance = msgspec.structs.replace(allowance, concurrent=None)
        account = self._accounts.setdefault(name, _Account()) if takes_place else _Account()
        return Reservation(name, allowance, account, self._meter)

    def row_reservation(self, key: Key | None) -> Reservation:
        """Count a batch row only against the limit for rows."""
        if key is None or key.allowance.batch_tokens_per_day is None:
            return self.reservation(None)
        name, allowance = f"batch:{key.name}", Allowance(tokens_per_day=key.allowance.batch_tokens_per_day)
        return Reservation(name, allowance, self._accounts.setdefault(name, _Account()), self._meter)


class Reservation:
    """One call's use of limits, whose output is counted at the end."""

    def __init__(self, name: str, allowance: Allowance, account: _Account, meter: Meter) -> None:
        self.output_tokens = 0
        """Set by the running call before its end."""
        self.headers: dict[str, str] = {}
        self._name = name
        self._quotas = tuple(
            Quota(unit, period, limit)
            for name, (unit, period) in _QUOTAS.items()
            if (limit := getattr(allowance, name)) is not None
        )
        self._concurrent = allowance.concurrent
        self._account = account
        self._meter = meter
        self._outlives_request = False
        self._held_tokens = 0
        self._taken: dict[Quota, int] = {}

    async def __aenter__(self) -> Reservation:
        limit = self._concurrent
        if limit is not None and self._account.num_running >= limit:
            raise RequestsLimited(f"concurrent requests: Limit {limit}", retry_after_s=_CONCURRENT_RETRY_S)
        self._account.num_running += 1
        try:
            for quota in self._of(Unit.REQUESTS):
                await self._count_request(quota)
            await self._show()
        except BaseException:
            self._account.num_running -= 1
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._outlives_request:
            await self.end()

    def keep(self) -> None:
        """Let the call outlive its request. The caller must call `end`."""
        self._outlives_request = True

    async def end(self) -> None:
        self._account.num_running -= 1
        await self.settle()

    async def settle(self) -> None:
        """Count the output so far. The call may reserve again."""
        self._release()
        self._taken.clear()
        for quota in self._of(Unit.TOKENS):
            if self.output_tokens and not await self._meter.take(quota, self._name, self.output_tokens):
                window = await self._meter.window(quota, self._name)
                await self._meter.take(quota, self._name, window.remaining(quota.limit))
        self.output_tokens = 0

    async def reserve(self, *, prompt_tokens: int, output_tokens: int) -> None:
        """Count the prompt and reserve room for the output. Raises TokensLimited."""
        quotas = self._of(Unit.TOKENS)
        async with self._account.lock:
            for quota in quotas:
                await self._check_tokens(quota, prompt_tokens + output_tokens)
            for quota in quotas:
                await self._take(quota, prompt_tokens)
            self._account.held_tokens += output_tokens
            self._held_tokens = output_tokens
        await self._show()

    async def refund(self) -> None:
        await self._give_back()
        self.output_tokens = 0
        self._release()
        await self._show()

    def _of(self, unit: Unit) -> list[Quota]:
        return [quota for quota in self._quotas if quota.unit is unit]

    def _release(self) -> None:
        self._account.held_tokens -= self._held_tokens
        self._held_tokens = 0

    async def _take(self, quota: Quota, prompt_tokens: int) -> None:
        """Count nothing if another server was faster. Raises TokensLimited."""
        if await self._meter.take(quota, self._name, prompt_tokens):
            self._taken[quota] = prompt_tokens
            return
        try:
            await self._check_tokens(quota, prompt_tokens)
        except TokensLimited:
            await self._give_back()
            raise

    async def _give_back(self) -> None:
        for quota, tokens in self._taken.items():
            await self._meter.give_back(quota, self._name, tokens)
        self._taken.clear()

    async def _count_request(self, quota: Quota) -> None:
        if await self._meter.take(quota, self._name, 1):
            return
        await self._show()
        window = await self._meter.window(quota, self._name)
        message = f"{quota.label}: Limit {quota.limit}, Requested 1"
        raise RequestsLimited(message, retry_after_s=window.wait_s(1, quota.limit))

    async def _check_tokens(self, quota: Quota, tokens: int) -> None:
        window = await self._meter.window(quota, self._name)
        held = self._account.held_tokens
        if tokens + held <= window.remaining(quota.limit):
            return
        await self._show()
        used = quota.limit - window.remaining(quota.limit) + held
        raise TokensLimited(
            f"{quota.label}: Limit {quota.limit}, Used {used}, Requested {tokens}",
            retry_after_s=window.wait_s(min(tokens + held, max(tokens, quota.limit)), quota.limit),
        )

    async def _show(self) -> None:
        for quota in self._quotas:
            if quota.period is Period.MINUTE:
                window = await self._meter.window(quota, self._name)
                held = self._account.held_tokens if quota.unit is Unit.TOKENS else 0
                self.headers.update(limit_headers(quota, window, held=held))
