"""Turns of sessions, read from a file or made up, and their tokens.

Made-up lengths are lognormal, with medians of published traces of chat services: some tens of tokens in a
prompt, one to two hundred in an answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Request as a line of a trace, with lengths of texts, and names of equal ones."""

    at_s: float
    """Arrival, from the trace's begin, or from the end of the session's previous turn."""
    session: str
    shared: tuple[tuple[str, int], ...] = ()
    """Texts at the begin of the session's prompt, such as (system-3, 800): name and tokens."""
    tokens: int
    """Tokens of the prompt after those, and after all previous turns with their answers."""
    output: int
    batch: bool = False
    fresh: bool = False
    """True if its prompt does not begin with the previous turns."""
    key: str = ""


def read_trace(path: Path) -> list[Turn]:
    with path.open("rb") as lines:
        return [msgspec.json.decode(line, type=Turn) for line in lines if line.strip()]


def write_trace(path: Path, turns: Iterable[Turn]) -> None:
    with path.open("wb") as file:
        file.writelines(msgspec.json.encode(turn) + b"\n" for turn in turns)


def sessions(turns: Iterable[Turn]) -> dict[str, list[Turn]]:
    found: dict[str, list[Turn]] = {}
    for turn in turns:
        found.setdefault(turn.session, []).append(turn)
    return found


class Texts:
    """Makes tokens of texts with a name and a length only. Python caches the 256 different numbers, so a
    prompt takes little memory."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._shared: dict[tuple[str, int], tuple[int, ...]] = {}

    def shared(self, name: str, length: int) -> tuple[int, ...]:
        if (name, length) not in self._shared:
            self._shared[name, length] = self.own(name, length)
        return self._shared[name, length]

    def own(self, name: str, length: int) -> tuple[int, ...]:
        return tuple(Random(f"{self._seed}/{name}").randbytes(length))


def prompts(turns: Iterable[Turn], texts: Texts) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    before: tuple[int, ...] = ()
    for number, turn in enumerate(turns):
        begin = tuple(token for text in turn.shared for token in texts.shared(*text))
        own = texts.own(f"{turn.session}/{number}/asked", turn.tokens)
        answer = texts.own(f"{turn.session}/{number}/answer", turn.output)
        prompt = begin + own if turn.fresh else before + begin + own
        before = prompt + answer
        yield prompt, answer


_MOST_TOKENS = 12_000
"""A longer prompt would fill the KV pool of a replica."""


@dataclass(frozen=True)
class Mix:
    chats: float = 0.0
    questions: float = 0.0
    batch_rows: float = 0.0
    """Mean rows of batch jobs per second, in jobs of 200."""
    num_prompts: int = 12
    """Different system prompts; the first is in every third session (Zipf)."""
    num_documents: int = 200
    burst: float = 3.0
    """Factor of the rate in a tenth of the time; 1 for no bursts."""

    @property
    def interactive(self) -> float:
        return self.chats + self.questions


def trace(
    mix: Mix, seconds: float, seed: int, rate: Callable[[float], float] = lambda at_s: 1.0
) -> list[Turn]:
    """Return turns of all sessions that begin within this time. `rate`: factor of their rate."""
    random = Random(seed)
    turns: list[Turn] = []
    for number, at_s in enumerate(_begins(mix, seconds, random, rate)):
        is_chat = random.random() * mix.interactive < mix.chats
        make = _chat if is_chat else _question
        turns += make(f"{'chat' if is_chat else 'question'}-{number}", at_s, mix, random)
    turns += _jobs(mix, seconds, random)
    return turns


def day_curve(day_s: float) -> Callable[[float], float]:
    return lambda at_s: max(0.05, 1 - math.cos(2 * math.pi * at_s / day_s))


def _begins(mix: Mix, seconds: float, random: Random, rate: Callable[[float], float]) -> Iterator[float]:
    at_s, burst_until_s, next_burst_s = 0.0, 0.0, random.expovariate(1 / 90)
    # Between bursts they arrive less often, so that the mean is the requested rate.
    calm = 1 / (0.9 + 0.1 * mix.burst)
    most = mix.interactive * max(mix.burst, 1.0) * 2
    while mix.interactive:
        at_s += random.expovariate(most)
        if at_s >= seconds:
            return
        if at_s >= next_burst_s:
            burst_until_s = at_s + 10
            next_burst_s = burst_until_s + random.expovariate(1 / 90)
        now = mix.interactive * calm * (mix.burst if at_s < burst_until_s else 1.0) * rate(at_s)
        if random.random() < now / most:
            yield at_s


def _chat(name: str, at_s: float, mix: Mix, random: Random) -> Iterator[Turn]:
    number = _zipf(random, mix.num_prompts)
    system = (f"system-{number}", 200 + Random(number).randrange(1400))
    total = system[1]
    for turn in range(1 + min(11, int(random.expovariate(1 / 2.5)))):
        tokens, output = _length(random, 45, 1.0, 1500), _length(random, 140, 0.7, 700)
        total += tokens + output
        if total > _MOST_TOKENS:
            return
        wait_s = at_s if turn == 0 else 4 + random.expovariate(1 / 16)
        yield Turn(
            at_s=wait_s, session=name, shared=(system,) if turn == 0 else (), tokens=tokens, output=output
        )


def _question(name: str, at_s: float, mix: Mix, random: Random) -> Iterator[Turn]:
    documents = dict.fromkeys(_zipf(random, mix.num_documents) for _ in range(3))
    texts = tuple((f"document-{one}", 200 + Random(one).randrange(500)) for one in documents)
    yield Turn(
        at_s=at_s,
        session=name,
        shared=(("instructions", 350), *texts),
        tokens=_length(random, 40, 0.6, 300),
        output=_length(random, 110, 0.6, 500),
    )


def _jobs(mix: Mix, seconds: float, random: Random) -> Iterator[Turn]:
    rows = 200
    if not mix.batch_rows:
        return
    at_s = random.expovariate(mix.batch_rows / rows) / 4
    job = 0
    while at_s < seconds:
        text = (f"job-{job}", 200 + random.randrange(1000))
        for row in range(rows):
            tokens, output = _length(random, 150, 0.5, 1000), _length(random, 60, 0.5, 300)
            name = f"job-{job}/{row}"
            yield Turn(at_s=at_s, session=name, shared=(text,), tokens=tokens, output=output, batch=True)
        at_s += random.expovariate(mix.batch_rows / rows)
        job += 1


def _length(random: Random, median: float, spread: float, most: int) -> int:
    return max(1, min(most, round(random.lognormvariate(math.log(median), spread))))


def _zipf(random: Random, num: int) -> int:
    weights = [1 / (rank + 1) for rank in range(num)]
    return random.choices(range(num), weights)[0]
