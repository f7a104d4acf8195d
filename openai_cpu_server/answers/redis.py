"""Answers in Redis, for several servers: Redis 8 finds similar turns itself, and for others they are compared
here. All keys have one hash tag, because scripts need them together."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from openai_cpu_server.answers.store import (
    FEW,
    GROUP_LIMIT,
    AnswerEntry,
    SimilarTurn,
    StoreBounds,
    StoreFailed,
    StoreSize,
    nearest_turns,
)
from openai_cpu_server.errors import MissingExtra, StartupError

if TYPE_CHECKING:
    from redis.asyncio import Redis

P = ParamSpec("P")
T = TypeVar("T")
SCHEMES = ("redis://", "rediss://", "redis+unix://")
_PREFIX = "{ocs-answers}:2:"
_USED, _FACTS, _TOTAL, _ENDS = (_PREFIX + name for name in ("used", "facts", "total", "ends"))
_ANSWER, _TURNS = _PREFIX + "answer:", _PREFIX + "turns:"
_FEW_ENDED = 100
"""Expired answers removed with each new one, because Redis keeps their turns."""
_ANSWER_S = 1.0

_DROP = """
local function leave(group, key)
  if not group or group == '' then return end
  if ARGV[3] == 'vectors' then redis.call('VREM', ARGV[2] .. group, key)
  else redis.call('HDEL', ARGV[2] .. group, key) end
end
local function drop(key, default)
  local bytes, group = string.match(redis.call('HGET', KEYS[2], key) or '', '^(%d+) (.*)$')
  leave(group or default, key)
  redis.call('UNLINK', ARGV[1] .. key)
  redis.call('HDEL', KEYS[2], key)
  redis.call('ZREM', KEYS[1], key)
  redis.call('ZREM', KEYS[4], key)
  if bytes then redis.call('DECRBY', KEYS[3], bytes) end
end
"""
_FORGET = _DROP + "drop(ARGV[4], ARGV[5])"
_PUT = (
    _DROP
    + """
local key, now, ttl, bytes, most = ARGV[4], ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local answer, group, vector, limit = ARGV[9], ARGV[10], ARGV[11], tonumber(ARGV[12])
local ended = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, ARGV[13])
for _, old in ipairs(ended) do drop(old) end
drop(key)
redis.call('SET', ARGV[1] .. key, answer, 'PX', ttl)
if group ~= '' then
  local turns = ARGV[2] .. group
  if ARGV[3] == 'vectors' then redis.call('VADD', turns, 'FP32', vector, key, 'NOQUANT')
  else
    if redis.call('HLEN', turns) >= limit then redis.call('HDEL', turns, redis.call('HRANDFIELD', turns)) end
    redis.call('HSET', turns, key, vector)
  end
  redis.call('PEXPIRE', turns, ttl)
end
redis.call('HSET', KEYS[2], key, bytes .. ' ' .. group)
redis.call('ZADD', KEYS[1], now, key)
redis.call('ZADD', KEYS[4], tonumber(now) + ttl / 1000, key)
local total = tonumber(redis.call('INCRBY', KEYS[3], bytes))
while total > most do
  local oldest = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
  if not oldest then redis.call('SET', KEYS[3], 0) break end
  drop(oldest)
  total = tonumber(redis.call('GET', KEYS[3]))
end
return {redis.call('ZCARD', KEYS[1]), total}
"""
)


def _failing_by_kind(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Report errors by their class, because their messages may hold the URL and its password."""

    @wraps(work)
    async def method(*args: P.args, **kwargs: P.kwargs) -> T:
        from redis.exceptions import RedisError

        try:
            return await work(*args, **kwargs)
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreFailed(type(error).__name__) from error

    return method


class RedisAnswers:
    def __init__(self, redis: Redis, bounds: StoreBounds, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._bounds = bounds
        self._clock = clock
        self._way: str | None = None
        """`vectors` or `hashes`; None until Redis has reported its commands."""

    @classmethod
    def open(cls, url: str, bounds: StoreBounds, clock: Callable[[], float] = time.time) -> RedisAnswers:
        """Return a store that connects on first use. Raises StartupError, whose message omits the URL."""
        try:
            from redis.asyncio import Redis
        except ImportError:
            raise MissingExtra("--answer-cache needs", "redis") from None
        try:
            address = url.replace("redis+unix://", "unix://", 1)
            redis = Redis.from_url(address, socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S)
        except ValueError:
            raise StartupError("--answer-cache: expected redis://HOST:PORT") from None
        return cls(redis, bounds, clock)

    @_failing_by_kind
    async def get(self, key: str) -> bytes | None:
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.get(_ANSWER + key)
            pipe.zadd(_USED, {key: self._clock()}, xx=True)
            answer, _ = await pipe.execute()
        return None if answer is None else bytes(answer)

    @_failing_by_kind
    async def near(self, group: str, vector: bytes, *, at_least: float) -> Sequence[SimilarTurn]:
        if not await self._finds_itself():
            rows = await self._command("HGETALL", _TURNS + group)
            turns = [(key.decode(), bytes(row)) for key, row in rows.items()]
            return nearest_turns(turns, vector, at_least=at_least)
        found = await self._command("VSIM", _TURNS + group, "FP32", vector, "WITHSCORES", "COUNT", FEW)
        pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        # The scores are (1 + cosine) / 2.
        best = [SimilarTurn(bytes(key).decode(), 2 * float(score) - 1) for key, score in pairs]
        return [near for near in best if near.similarity >= at_least]

    @_failing_by_kind
    async def put(self, entry: AnswerEntry) -> StoreSize:
        values = (
            *(repr(self._clock()), round(1000 * self._bounds.ttl_s), entry.num_bytes),
            *(self._bounds.max_bytes, entry.answer, entry.group or "", entry.vector or b"", GROUP_LIMIT),
            _FEW_ENDED,
        )
        entries, num_bytes = await self._script(_PUT, entry.key, *values)
        return StoreSize(int(entries), int(num_bytes))

    @_failing_by_kind
    async def forget(self, key: str, group: str | None) -> None:
        await self._script(_FORGET, key, group or "")

    @_failing_by_kind
    async def size(self) -> StoreSize:
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.zcard(_USED)
            pipe.get(_TOTAL)
            entries, num_bytes = await pipe.execute()
        return StoreSize(int(entries), int(num_bytes or 0))

    @_failing_by_kind
    async def clear(self) -> None:
        """Remove all answers, including those of other versions of this layout."""
        keys = [key async for key in self._redis.scan_iter(match="{ocs-answers}:*", count=1000)]
        for start in range(0, len(keys), 1000):
            await self._redis.unlink(*keys[start : start + 1000])

    @_failing_by_kind
    async def close(self) -> None:
        await self._redis.aclose()

    async def _script(self, script: str, key: str, *values: object) -> Any:
        way = "vectors" if await self._finds_itself() else "hashes"
        names = (_USED, _FACTS, _TOTAL, _ENDS, _ANSWER, _TURNS, way, key)
        return await self._command("EVAL", script, 4, *names, *values)

    async def _command(self, *words: object) -> Any:
        return await self._redis.execute_command(*words)  # type: ignore[no-untyped-call]

    async def _finds_itself(self) -> bool:
        if self._way is None:
            commands = await self._command("COMMAND INFO", "VADD")
            has_it = any(commands.values()) if isinstance(commands, dict) else any(commands)
            self._way = "vectors" if has_it else "hashes"
        return self._way == "vectors"
