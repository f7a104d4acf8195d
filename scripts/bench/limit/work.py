"""What the bare loop is told to compute, and how; what it answers. Plain data."""

from __future__ import annotations

import msgspec


class Request(msgspec.Struct, frozen=True):
    """Tokens of one that any number of others may share a prefix with."""

    prompt: int
    """Of its own, at least 1."""
    output: int
    """At least 1: the first comes of the prompt's last token."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Requests in a closed loop: who has been answered takes the next at once."""

    clients: int
    requests: tuple[Request, ...]
    shared: int = 0
    """Tokens that all prompts begin with, computed once."""
    is_warm: bool = False
    """They are computed already when the clock starts."""

    @property
    def output_tokens(self) -> int:
        return sum(request.output for request in self.requests)

    @property
    def longest(self) -> int:
        return self.shared + max(request.prompt + request.output for request in self.requests)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How steps are put together."""

    size: int
    """Tokens of a step that reads prompts."""
    mixes: bool
    """Who decodes is in such steps too; else prompts are read first, alone."""
    readers: int | None = None
    """None: all sequences are in one pool of cells. Else each has its own, and none can share: llama.cpp
    computes together only neighbours that have equally many tokens, so nobody reads beside who decodes, and
    so many neighbours at most read together."""

    def __post_init__(self) -> None:
        assert self.unified or not self.mixes

    @property
    def unified(self) -> bool:
        return self.readers is None

    def __str__(self) -> str:
        kind = "prompts and decoding mixed" if self.mixes else "prompts apart"
        cells = "one pool of cells" if self.unified else f"cells apart, {self.readers} read at once"
        return f"{kind}, prompt steps of {self.size}, {cells}"


class Trial(msgspec.Struct, frozen=True):
    work: Work
    policy: Policy


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """For a process of its own: steps of these sizes are timed, then the trials are run with the times."""

    model: str
    repack: bool
    sizes: tuple[int, ...] = ()
    repeats: int = 1
    step_ms: tuple[tuple[int, float], ...] = ()
    """Known times, if no sizes are to be timed."""
    trials: tuple[Trial, ...] = ()


class LoopRun(msgspec.Struct, frozen=True, kw_only=True):
    """How one trial went."""

    seconds: float
    decode_ms: float | None
    """Median of the steps in which all clients decode and nobody reads; None: there were none."""
    requests: int
    output_tokens: int
    ttft_s: tuple[float, ...]
    """By request, from when its client took it."""
    gaps_s: tuple[float, ...]
    """Between tokens of a request, of all requests."""

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    step_ms: tuple[tuple[int, float], ...]
    runs: tuple[LoopRun, ...]
