"""Streams while the engine is killed again and again: complete, and equal to those of a quiet server."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from chaos_parts.ray_server import RayServer
from chaos_parts.server import KillableServer, Server

_TIE = 0.05
"""Nearer, in log-probability, two tokens may change places: sums in another batch are rounded otherwise."""
_AGAIN = 0.2
"""Share of the kills that hit whatever is there up to a second after another: often an engine that loads."""
_BETWEEN = 16
"""Tokens before the next kill by progress: else fast kills would all hit engines that still load."""


@dataclass
class Stream:
    tokens: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """Log-probability of each token less that of the second best."""
    reported: int | None = None
    """Output tokens by the server's own count."""
    last_s: float | None = None
    """When its last token came, on the monotonic clock."""
    pause_s: float = 0.0
    """The longest time between two tokens."""
    is_done: bool = False
    status: int = 0
    error: str | None = None


@dataclass
class StreamFigures:
    kills: int
    """Processes that were killed; fewer than asked for where the streams end first."""
    deaths: str
    """The deaths of engines by cause, as the server has counted them."""
    own_deaths: int
    """The deaths that no kill explains. (A kill by the system's own memory killer is among them.) Over Ray a
    replica that is killed before an API process has heard of it counts as no death."""
    requests: int
    lost: int
    """Streams that ended early, with an error, or short of a token."""
    doubled: int
    """Streams with more tokens than asked for, or than the server has counted."""
    different: int
    """Complete, but with other tokens than undisturbed."""
    ties: int
    """Answers with other tokens after a place where the two best were as good as equal."""
    status_5xx: int
    memory_start_mib: float
    memory_end_mib: float
    longest_pause_s: float
    """Between two tokens of a stream, of all that were disturbed."""
    quiet_s: float
    wall_s: float

    @property
    def is_good(self) -> bool:
        wrong = (self.own_deaths, self.lost, self.doubled, self.different, self.status_5xx)
        return not any(wrong)


class Progress:
    """Output tokens of all streams; wakes the killer at those that were drawn for it."""

    def __init__(self) -> None:
        self.tokens = 0
        self._news = asyncio.Event()

    def token(self) -> None:
        self.tokens += 1
        self._news.set()

    async def reach(self, tokens: int) -> None:
        while self.tokens < tokens:
            self._news.clear()
            await self._news.wait()


async def run_streams(
    model: Path,
    folder: Path,
    *,
    requests: int,
    kills: int,
    tokens: int,
    clients: int,
    seed: int,
    over_ray: bool = False,
    readers: bool = False,
) -> StreamFigures:
    """`over_ray`: two engine replicas, of which one is killed at a time. `readers`: those who read texts are
    killed in place of the engine."""
    chance = random.Random(seed)
    options = ("--jobs-db", "none", "--max-crashes-per-minute", "1000")
    with _server(model, folder / "streams.log", options, over_ray=over_ray) as server:
        began = time.monotonic()
        quiet = await _all(server, requests, tokens, clients, Progress())
        quiet_s, start_mib = time.monotonic() - began, server.rss_mib()
        progress = Progress()
        kill = server.kill_reader if readers and isinstance(server, Server) else server.kill_engine
        killer = asyncio.create_task(_kill(kill, kills, requests * tokens, chance, progress))
        began = time.monotonic()
        disturbed = await _all(server, requests, tokens, clients, progress)
        killer.cancel()
        await asyncio.wait([killer])
        if not killer.cancelled():
            killer.result()
        wall_s, deaths = time.monotonic() - began, server.deaths()
        return StreamFigures(
            kills=server.kills,
            deaths=", ".join(f"{cause} {count}" for cause, count in deaths.most_common()) or "none",
            own_deaths=max(0, sum(deaths.values()) - server.kills),
            requests=requests,
            lost=sum(not _is_whole(one, tokens) for one in disturbed),
            doubled=sum(len(one.tokens) > tokens for one in disturbed),
            different=sum(_differs(a, b) for a, b in zip(quiet, disturbed, strict=True)),
            ties=sum(_parts_at_a_tie(a, b) for a, b in zip(quiet, disturbed, strict=True)),
            status_5xx=sum(one.status >= 500 for one in [*quiet, *disturbed]),
            memory_start_mib=start_mib,
            memory_end_mib=server.rss_mib(),
            longest_pause_s=max(one.pause_s for one in disturbed),
            quiet_s=quiet_s,
            wall_s=wall_s,
        )


def _server(model: Path, log: Path, options: tuple[str, ...], *, over_ray: bool) -> KillableServer:
    return RayServer(model, log, *options) if over_ray else Server([f"chaos={model}"], log, *options)


async def _kill(
    kill: Callable[[], bool], kills: int, num_tokens: int, chance: random.Random, progress: Progress
) -> None:
    """Kill at tokens drawn from all that will come, and some after a
    random time, whatever the engine does."""
    num_again = round(_AGAIN * kills)
    moments = sorted(chance.randrange(num_tokens * 3 // 4) for _ in range(kills - num_again))
    early = range((len(moments) + 1) // 2)  # the second one, a second later, must still find streams
    doubled = set(chance.sample(early, min(num_again, len(early))))
    for number, moment in enumerate(moments):
        await progress.reach(max(moment, progress.tokens + _BETWEEN))
        await _kill_one(kill, chance.uniform(0, 0.05))
        if number in doubled:
            await _kill_one(kill, chance.uniform(0, 1))


async def _kill_one(kill: Callable[[], bool], delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    while not kill():  # noqa: ASYNC110 (what is waited for is another process)
        await asyncio.sleep(0.01)


async def _all(
    server: KillableServer, requests: int, tokens: int, clients: int, progress: Progress
) -> list[Stream]:
    streams = [Stream() for _ in range(requests)]
    open_at_once = asyncio.Semaphore(clients)
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as client:
        await asyncio.gather(
            *(_one(client, n, one, tokens, open_at_once, progress) for n, one in enumerate(streams))
        )
    return streams


async def _one(
    client: httpx.AsyncClient,
    number: int,
    found: Stream,
    tokens: int,
    open_at_once: asyncio.Semaphore,
    progress: Progress,
) -> None:
    body = {
        "model": "chaos",
        "prompt": f"Story {number}: " + "once upon a time, " * (number % 7),
        "max_tokens": tokens,
        "temperature": 0,
        "logprobs": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    async with open_at_once:
        try:
            async with client.stream("POST", "/v1/completions", json=body) as response:
                found.status = response.status_code
                async for line in response.aiter_lines():
                    _read(line, found, progress)
        except httpx.HTTPError as error:
            found.error = repr(error)


def _read(line: str, found: Stream, progress: Progress) -> None:
    if line == "data: [DONE]":
        found.is_done = True
    elif line.startswith("event: error"):
        found.error = line
    elif line.startswith("data: {"):
        chunk = json.loads(line.removeprefix("data: "))
        if chunk.get("usage"):
            found.reported = chunk["usage"]["completion_tokens"]
        for choice in chunk.get("choices", ()):
            _take(choice.get("logprobs"), found, progress)


def _take(logprobs: dict[str, list[object]] | None, found: Stream, progress: Progress) -> None:
    if logprobs is None:
        return
    now_s = time.monotonic()
    found.pause_s = max(found.pause_s, now_s - (found.last_s or now_s))
    found.last_s = now_s
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert isinstance(top, dict)
        found.tokens.append(str(token))
        found.gaps.append(max(top.values()) - min(top.values()) if len(top) > 1 else 0.0)
        progress.token()


def _is_whole(one: Stream, tokens: int) -> bool:
    return one.is_done and one.error is None and one.reported == tokens and len(one.tokens) >= tokens


def _parts_at_a_tie(quiet: Stream, disturbed: Stream) -> bool:
    num = min(len(quiet.tokens), len(disturbed.tokens))
    return quiet.tokens[:num] != disturbed.tokens[:num] and not _differs(quiet, disturbed)


def _differs(quiet: Stream, disturbed: Stream) -> bool:
    """Whether two answers differ where neither was near a tie."""
    pairs = zip(quiet.tokens, disturbed.tokens, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    return first is not None and quiet.gaps[first] >= _TIE
