"""*turns*: conversations with all earlier text, and the share that is not computed again. After the last turn
the server is gracefully restarted for one more."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.bench import Bench
from bench.clients import Clients, LoadFailed
from bench.prompts import random_words
from bench.results import Direction, WorkloadResult, percentile
from bench.servers import Contestant, Room, Server, Variant
from bench.traffic import BenchRequest, Message, Trace, first_token_times

_POOL_TOKENS = 16384
_TOKENS_PER_WORD = 1.5
_TEMPLATE_TOKENS = 12


@dataclass(frozen=True)
class Size:
    conversations: int
    turns: int
    system_words: int
    user_words: int
    answer_tokens: int

    @property
    def room(self) -> Room:
        turn = self.user_words * _TOKENS_PER_WORD + self.answer_tokens + _TEMPLATE_TOKENS
        longest = self.system_words * _TOKENS_PER_WORD + (self.turns + 1) * turn
        return Room(pool_tokens=_POOL_TOKENS, request_tokens=round(longest))


FULL = Size(conversations=4, turns=20, system_words=150, user_words=60, answer_tokens=24)
QUICK = Size(conversations=2, turns=5, system_words=40, user_words=20, answer_tokens=8)


class Conversation:
    """Conversation whose questions follow answers, and are sent with all earlier text."""

    def __init__(self, size: Size, *seed: object) -> None:
        self._size = size
        self._seed = seed
        self._messages: list[Message] = [
            {"role": "system", "content": random_words(size.system_words, *seed, "system")}
        ]
        self.traces: list[Trace] = []

    async def turn(self, clients: Clients) -> None:
        """Send the next question. Raises LoadFailed if the answer is incomplete."""
        question = random_words(self._size.user_words, *self._seed, len(self.traces))
        self._messages.append({"role": "user", "content": question})
        request = BenchRequest(
            messages=tuple(self._messages), max_tokens=self._size.answer_tokens, seed=len(self.traces)
        )
        trace = await clients.send(request)
        if trace.error is not None or trace.usage is None:
            raise LoadFailed(trace.error or "the answer has no usage")
        self._messages.append({"role": "assistant", "content": trace.text})
        self.traces.append(trace)


Talk = list[list[Trace]]
"""Traces of each conversation. The turn after the restart is the last."""


def _reused_percent(conversations: Iterable[Sequence[Trace]]) -> float:
    """Return the share of the previous prompt and answer that was not computed again."""
    usages = [[trace.usage for trace in traces if trace.usage] for traces in conversations]
    pairs = list(itertools.chain.from_iterable(map(itertools.pairwise, usages)))
    earlier = sum(before.prompt_tokens + before.completion_tokens for before, _ in pairs)
    return 100 * sum(now.cached_tokens for _, now in pairs) / earlier


def _first_token_s(traces: Iterable[Trace]) -> float:
    return percentile(first_token_times(list(traces)), 50)


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL

    def measure(who: Contestant, number: int) -> Talk:
        talking = [Conversation(size, "turns", number, i) for i in range(size.conversations)]
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            for turns in (size.turns, 1):
                with bench.start(who, size.room, "--cache-file", f"{folder}/cells") as server:
                    asyncio.run(_talk(server, talking, turns))
        return [conversation.traces for conversation in talking]

    contestants = [who for who in bench.contestants(Variant.WHOLE, Variant.CACHE_OFF) if who.tells_cached]
    contest = bench.contest(contestants, measure)
    back, restart, more = "earlier tokens given back", "after a restart", Direction.AT_LEAST
    reused = (
        contest.line(back, "%", more, lambda talk: _reused_percent(traces[:-1] for traces in talk)),
        contest.line(
            f"{back} {restart}", "%", more, lambda talk: _reused_percent(traces[-2:] for traces in talk)
        ),
    )
    times = contest.seconds(
        {
            "TTFT p50 from the second turn on": lambda talk: _first_token_s(
                trace for traces in talk for trace in traces[1:-1]
            ),
            f"TTFT p50 {restart}": lambda talk: _first_token_s(traces[-1] for traces in talk),
        }
    )
    return WorkloadResult(
        name="turns",
        sizes=f"{size.conversations} conversations at once, {size.turns} turns and one after a restart; "
        f"{size.system_words} words before them, {size.user_words} words + {size.answer_tokens} tokens each",
        goals=tuple(contest.own_goal(line, line.what, 95) for line in reused),
        lines=(*reused, *times),
        failures=contest.failures,
    )


async def _talk(server: Server, talking: list[Conversation], turns: int) -> None:
    async def go_on(conversation: Conversation) -> None:
        clients = server.clients()
        for _ in range(turns):
            await conversation.turn(clients)

    await asyncio.gather(*map(go_on, talking))
