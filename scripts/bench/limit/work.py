"""What the bare loop is to compute and how, and its answers. Plain data."""

from __future__ import annotations

import msgspec


class Request(msgspec.Struct, frozen=True):
    """The tokens of a request, without the prefix that it may share with others."""

    prompt: int
    """The prompt's own tokens, at least 1."""
    output: int
    """The output's tokens, at least 1: the last token of the prompt gives the first."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Requests in a closed loop: a client whose request is answered takes the next at once."""

    clients: int
    requests: tuple[Request, ...]
    shared: int = 0
    """The tokens that all prompts begin with. They are computed once."""
    is_warm: bool = False
    """Whether these are computed already when the clock starts."""

    @property
    def output_tokens(self) -> int:
        return sum(request.output for request in self.requests)

    @property
    def longest(self) -> int:
        return self.shared + max(request.prompt + request.output for request in self.requests)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How to put steps together."""

    size: int
    """The tokens of a step that reads prompts."""
    mixes: bool
    """Whether decoding sequences are in such steps, too; else prompts are read first, alone."""
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
    """A job for a process of its own: it times steps of these sizes, then runs the trials with the times."""

    model: str
    repack: bool
    sizes: tuple[int, ...] = ()
    repeats: int = 1
    step_ms: tuple[tuple[int, float], ...] = ()
    """The times, if they are known and no sizes are to be timed."""
    trials: tuple[Trial, ...] = ()


class LoopRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one trial."""

    seconds: float
    decode_ms: float | None
    """The median of the steps in which all clients decode and none reads; None: there were none."""
    requests: int
    output_tokens: int
    ttft_s: tuple[float, ...]
    """The seconds to the first token, by request, from the moment when its client took it."""
    gaps_s: tuple[float, ...]
    """The seconds between tokens of a request, for all requests."""

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    step_ms: tuple[tuple[int, float], ...]
    runs: tuple[LoopRun, ...]
