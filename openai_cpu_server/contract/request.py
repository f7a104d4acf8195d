"""A generation request as the engine sees it. Bounds keep values, and results computed from them, within
float32 or int32: a penalty of 1e-300 would become a divisor of 0."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import AnyStr, NamedTuple

import msgspec

from openai_cpu_server.contract.media import MediaItem, PlaceholderRange, are_rows, is_row

MOST_INT = 2**31 - 1


class Bounds(NamedTuple):
    least: float
    most: float

    def hold(self, number: float) -> bool:
        """NaN is never within the bounds."""
        return self.least <= number <= self.most

    def nearest(self, number: float) -> float:
        return min(max(number, self.least), self.most)


class WholeBounds(NamedTuple):
    least: int
    most: int

    def hold(self, number: int) -> bool:
        return self.least <= number <= self.most


SMALLEST = 1e-6
"""Smaller absolute values count as 0, because they do not fit into float32 or have no effect."""
COLDEST = 1e-5
"""Lower temperatures are greedy, as in vLLM."""

TEMPERATURE = Bounds(0.0, 2.0)
SHARE = Bounds(0.0, 1.0)
TYPICAL_P = Bounds(0.001, 1.0)
REPEAT_PENALTY = Bounds(0.01, 100.0)
USAGE_PENALTY = Bounds(-2.0, 2.0)
LOGIT_BIAS = Bounds(-100.0, 100.0)
TOP_N_SIGMA = Bounds(0.0, 100.0)
DRY_MULTIPLIER = Bounds(0.0, 100.0)
DRY_BASE = Bounds(1.0, 100.0)
TOP_K = WholeBounds(1, MOST_INT)
COUNT = WholeBounds(0, MOST_INT)


_LONGEST_CHARACTER = 4


class OutputPart(enum.Enum):
    """Reasoning never follows the answer, except in formats with channels. There it is part of the answer, as
    tool calls always are, because the API reads these formats."""

    THINKING = "thinking"
    ANSWER = "answer"


class OutputMarks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Marks between the parts of one output. Marks, and white space around them, belong to no part."""

    begin: str = ""
    """Empty if the prompt has opened the reasoning."""
    end: str = ""
    """Empty if the prompt has closed the reasoning."""
    answer_begin: str = ""
    answer_alone: str = ""
    answer_end: str = ""
    has_channels: bool = False
    """Text is passed on unchanged for a reader of channels; only tokens are attributed to parts."""


class Thinking(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Marks of the reasoning, which name control tokens as the vocabulary does."""

    end: str
    begin: str = ""
    opening: tuple[int, ...] = ()
    """Tokens that spell `begin` and must begin the output; () if it may begin otherwise."""
    shown_behind: str = ""
    """Mark before the text for the user, in formats with headers. "": directly behind the reasoning."""
    budget: int | None = None
    """Maximum tokens without marks, or None. A begun character is finished first."""
    ends_at: int | None = None
    """Number of output tokens at which the reasoning ends on request, or None."""
    closing: tuple[int, ...] = ()
    """Tokens that spell `end`, possibly behind closing words."""


class ReasoningTracker:
    """Tracker whose state depends on the tokens alone; a shallow copy is independent."""

    def __init__(
        self, begin: str, end: str, *, budget: int | None = None, ends_at: int | None = None
    ) -> None:
        self._begin = begin.encode()
        self._end = end.encode()
        self._budget = budget
        self._ends_at = ends_at
        self._is_inside = not self._begin
        self._tail = b""
        self._num_read = 0
        self._num_inside = 0

    @property
    def num_tokens(self) -> int:
        """Tokens so far with their marks, or 0 before the reasoning begins."""
        return self._num_read if self._is_inside else 0

    @property
    def is_used_up(self) -> bool:
        if not self._is_inside:
            return False
        by_budget = -1 if self._budget is None else self._num_inside - self._budget
        by_wish = -1 if self._ends_at is None else self._num_read - self._ends_at
        num_over = max(by_budget, by_wish)
        if num_over < 0:
            return False
        return num_over >= _LONGEST_CHARACTER - 1 or not _ends_within_character(self._tail)

    def read(self, piece: bytes) -> bytes | None:
        """Return None until the answer begins, then its first bytes. Nothing can be read afterwards."""
        self._num_read += 1
        if self._is_inside:
            self._num_inside += 1
            return self._look_for_end(self._tail + piece)
        text = (self._tail + piece).lstrip()
        if text.startswith(self._begin):
            self._is_inside = True
            return self._look_for_end(text[len(self._begin) :])
        if not self._begin.startswith(text):
            return self._tail + piece
        self._tail += piece
        return None

    def _look_for_end(self, text: bytes) -> bytes | None:
        _, found, answer = text.partition(self._end)
        if found:
            return answer
        self._tail = text[-max(len(self._end) - 1, _LONGEST_CHARACTER) :]
        return None


def overlap(text: AnyStr, mark: AnyStr) -> int:
    """Return the length of the longest end of the text that is a proper prefix of the mark."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)


def _ends_within_character(text: bytes) -> bool:
    for length, byte in enumerate(reversed(text[-_LONGEST_CHARACTER:]), start=1):
        if byte & 0xC0 != 0x80:  # the character's first byte, which has their number
            return length < 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
    return False


class Priority(enum.IntEnum):
    """The smaller value goes first."""

    INTERACTIVE = 0
    BATCH = 1

    @property
    def label(self) -> str:
        return self.name.lower()


class DryPenalty(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """DRY of llama.cpp: `multiplier` * `base` ** (n - `allowed_length`) behind n repeated tokens."""

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    last_n: int | None = None
    """Last tokens to search, with the prompt. None: all."""
    breakers: tuple[str, ...] = ("\n", ":", '"', "*")

    @property
    def is_sound(self) -> bool:
        last_n = 0 if self.last_n is None else self.last_n
        is_strong = DRY_MULTIPLIER.hold(self.multiplier) and DRY_BASE.hold(self.base)
        return is_strong and COUNT.hold(self.allowed_length) and COUNT.hold(last_n)


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The defaults leave the model's distribution unchanged."""

    seed: int
    """Every draw comes from a generator positioned by (seed, output position)."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    """Divisor of the logits of the last `repeat_last_n` tokens, with the prompt (llama.cpp's)."""
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token in the output (OpenAI's)."""
    frequency_penalty: float = 0.0
    """Subtracted for each occurrence in the output (OpenAI's)."""
    logit_bias: dict[int, float] = {}
    top_n_sigma: float = 0.0
    """Maximum standard deviations below the largest logit, or 0 for no limit."""
    xtc_probability: float = 0.0
    """Probability of removing all tokens of at least `xtc_threshold` but the last (XTC)."""
    xtc_threshold: float = 0.1
    dry: DryPenalty | None = None
    min_tokens: int = 0
    stop_tokens: tuple[int, ...] = ()
    scored: tuple[int, ...] = ()
    """Tokens reported behind the likeliest ones."""
    ignore_eos: bool = False
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Non-empty sequences, whose last token may not follow the others."""


_SAMPLING_BOUNDS: Mapping[str, Bounds | WholeBounds] = {
    "temperature": TEMPERATURE,
    "top_p": SHARE,
    "min_p": SHARE,
    "typical_p": TYPICAL_P,
    "repeat_penalty": REPEAT_PENALTY,
    "repeat_last_n": COUNT,
    "presence_penalty": USAGE_PENALTY,
    "frequency_penalty": USAGE_PENALTY,
    "top_n_sigma": TOP_N_SIGMA,
    "xtc_probability": SHARE,
    "xtc_threshold": SHARE,
    "min_tokens": COUNT,
}


class Constraint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    grammar: str | None = None
    """Lark that is known to compile in llguidance, or None for a free answer."""
    opening: tuple[int, ...] = ()
    """Tokens before the grammar, such as the marker of a tool call."""
    triggers: tuple[str, ...] = ()
    """Control tokens by name. The grammar begins behind the first of them, or at once for (), which requires
    that reasoning is certain or impossible."""
    thinking: Thinking | None = None
    """Marks of reasoning, after which constraint and stop strings count, or None."""


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    priority: Priority = Priority.INTERACTIVE
    client: str = ""
    """Opaque label for fairness."""
    account: str = ""
    """Opaque label to blame for crashes, or ""."""
    group: str = ""
    """Clients that share one turn. "": the client is alone."""
    route: str = ""
    """Calls with outputs of similar lengths."""

    @property
    def turns(self) -> tuple[str, str]:
        return self.group or self.client, self.client


class GenerationRequest(EngineRequest, frozen=True, kw_only=True, omit_defaults=True, tag="generate"):
    tokens: tuple[int, ...]
    """At least one, with rows of media as `media.row_numbers`."""
    media_items: tuple[MediaItem, ...] = ()
    media: tuple[PlaceholderRange, ...] = ()
    """Rows in the prompt, in order, with tokens behind the last."""
    boundaries: tuple[int, ...] = ()
    """Ascending lengths of prefixes behind which other prompts are likely to differ: tools, the last user's
    text, the answer."""
    max_tokens: int
    """0 computes (and scores) the prompt only."""
    sampling: Sampling
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    """Alternatives for each sampled token, or None."""
    prompt_logprobs: bool = False
    """Every prompt token but the first."""
    scores_end: bool = False
    """Report the token that ends the output, too, without text."""
    cache_namespace: str = ""
    adapter: str | None = None
    """Key or accepted name; None is the base model."""
    constraint: Constraint | None = None
    marks: OutputMarks | None = None
    """Unset if the whole output is the answer."""
    show_control_tokens: bool = False
    """Render control tokens (`[TOOL_CALLS]`) as text, except those that end the output."""
    reports_progress: bool = False
    ends_loops: bool = False
    """End as at the limit if the output repeats itself."""
    pin: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def item_of(self, placeholder: int) -> MediaItem:
        return self.media_items[self.media[placeholder].item]

    @property
    def cells_namespace(self) -> str:
        """Namespace of interchangeable KV cells. Each adapter has its own."""
        return self.cache_namespace if self.adapter is None else f"{self.cache_namespace}+{self.adapter}"

    @property
    def total_tokens(self) -> int:
        return len(self.tokens) + self.max_tokens

    def wrong_number(self, *, vocab_size: int) -> str | None:
        """Return a field that no native code may see, or None."""
        sampling = self.sampling
        for name, bounds in _SAMPLING_BOUNDS.items():
            if not bounds.hold(getattr(sampling, name)):
                return name
        if sampling.top_k is not None and not TOP_K.hold(sampling.top_k):
            return "top_k"
        if sampling.dry is not None and not sampling.dry.is_sound:
            return "dry"
        if not COUNT.hold(self.max_tokens):
            return "max_tokens"
        if not all(map(LOGIT_BIAS.hold, sampling.logit_bias.values())):
            return "logit_bias"
        if self.media and not are_rows(self.tokens, self.media, self.media_items):
            return "media"
        texts = [token for token in self.tokens if not is_row(token)] if self.media else self.tokens
        for name, tokens in (
            ("tokens", texts),
            ("logit_bias", tuple(sampling.logit_bias)),
            ("scored", sampling.scored),
            ("stop_tokens", sampling.stop_tokens),
            ("bad_words", tuple(token for row in sampling.bad_words for token in row)),
        ):
            if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
                return name
        return None
