"""A generation request as the engine sees it: tokens, parameters without open defaults and their bounds, and
the marks of its output's parts.

Each bound fits into what native code has for it, float32 or int32, and so does what is computed from it: a
penalty of 1e-300 is 0 there, and divides.

The engine alone looks for these marks: where it says what text is part of, and where it decides which tokens
may come. Both follow the output with `Thoughts`, so that they agree.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from openai_cpu_server.contract.media import MediaItem, Medium, are_rows, is_row

MOST_INT = 2**31 - 1
"""The largest int32."""


class Bounds(NamedTuple):
    least: float
    most: float

    def hold(self, number: float) -> bool:
        """Whether the number is within them; NaN never is."""
        return self.least <= number <= self.most

    def nearest(self, number: float) -> float:
        return min(max(number, self.least), self.most)


class WholeBounds(NamedTuple):
    least: int
    most: int

    def hold(self, number: int) -> bool:
        return self.least <= number <= self.most


SMALLEST = 1e-6
"""What is nearer to 0 is taken for 0: it would change nothing, or be too small for float32."""
COLDEST = 1e-5
"""Lower temperatures are greedy, as with vLLM."""

TEMPERATURE = Bounds(0.0, 2.0)
SHARE = Bounds(0.0, 1.0)
"""`top_p` and `min_p`."""
TYPICAL_P = Bounds(0.001, 1.0)
REPEAT_PENALTY = Bounds(0.01, 100.0)
USAGE_PENALTY = Bounds(-2.0, 2.0)
"""`presence_penalty` and `frequency_penalty`."""
LOGIT_BIAS = Bounds(-100.0, 100.0)
TOP_N_SIGMA = Bounds(0.0, 100.0)
DRY_MULTIPLIER = Bounds(0.0, 100.0)
DRY_BASE = Bounds(1.0, 100.0)
TOP_K = WholeBounds(1, MOST_INT)
COUNT = WholeBounds(0, MOST_INT)
"""Tokens, choices, items."""


_LONGEST_CHARACTER = 4
"""The most bytes of a character in UTF-8."""


class OutputPart(enum.Enum):
    """What a piece of an output's text is part of. Thoughts come before the answer, and never after it.

    Tool calls are part of the answer: how they are written is data of rooms that the API knows
    (`prompt/tool_formats`), and it reads them there. So are the thoughts of a format in channels, which stand
    between its calls too.
    """

    THINKING = "thinking"
    ANSWER = "answer"


class OutputMarks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the parts of one output are marked. Marks, and white space around them, belong to no part."""

    begin: str = ""
    """The mark with which the output may begin, behind white space; without it there are no thoughts.

    "": the prompt has opened the thoughts, and the output begins within them.
    """
    end: str = ""
    """The mark behind the thoughts; "": there are none, the prompt has closed them."""
    answer_begin: str = ""
    """A mark that may stand between the thoughts and the answer."""
    answer_end: str = ""
    """A mark that may stand behind the answer."""
    has_channels: bool = False
    """The text goes on as it is, for a reader of channels; only tokens are told apart."""


class Thinking(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the thoughts of one output are marked. Marks name control tokens as the vocabulary does."""

    end: str
    """The mark behind the thoughts."""
    begin: str = ""
    """As in `OutputMarks`."""
    opening: tuple[int, ...] = ()
    """Tokens with which the output must begin: they spell `begin`. (): it may begin with it or not."""
    shown_behind: str = ""
    """What is for the user begins behind this mark, which comes after the thoughts, for a format whose
    messages have headers; "": right behind the thoughts."""
    budget: int | None = None
    """The most tokens of the thoughts, marks not counted, before they are ended; None: any number.

    A character that has begun is finished first.
    """
    ends_at: int | None = None
    """The thoughts are ended once the output has so many tokens, whatever the budget; None: nobody has asked
    for that."""
    closing: tuple[int, ...] = ()
    """Tokens that end the thoughts when that is due: they spell `end`, maybe behind last words."""


class Thoughts:
    """Follows an output from its first token to the end of its thoughts. Where it stands depends on the
    tokens alone. A shallow copy goes on by itself."""

    def __init__(
        self, begin: str, end: str, *, budget: int | None = None, ends_at: int | None = None
    ) -> None:
        """As `Thinking` has them."""
        self._begin = begin.encode()
        self._end = end.encode()
        self._budget = budget
        self._ends_at = ends_at
        self._is_inside = not self._begin
        self._tail = b""
        """What may be a part of the next mark, or of a character."""
        self._num_read = 0
        self._num_inside = 0
        """Tokens since the thoughts have begun."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the thoughts so far, their marks included; 0 if none have begun."""
        return self._num_read if self._is_inside else 0

    @property
    def is_used_up(self) -> bool:
        """Whether the budget is, or somebody has ended the thoughts, so that `closing` must follow."""
        if not self._is_inside:
            return False
        by_budget = -1 if self._budget is None else self._num_inside - self._budget
        by_wish = -1 if self._ends_at is None else self._num_read - self._ends_at
        num_over = max(by_budget, by_wish)
        if num_over < 0:
            return False
        return num_over >= _LONGEST_CHARACTER - 1 or not _ends_within_character(self._tail)

    def read(self, piece: bytes) -> bytes | None:
        """Read the next token's bytes. None: the answer has not begun; else what belongs to it already.

        Nothing can be read behind that.
        """
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


def _ends_within_character(text: bytes) -> bool:
    for length, byte in enumerate(reversed(text[-_LONGEST_CHARACTER:]), start=1):
        if byte & 0xC0 != 0x80:  # the character's first byte, which tells how many it has
            return length < 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
    return False


class Priority(enum.IntEnum):
    """The order of classes: the smaller value goes first."""

    INTERACTIVE = 0
    BATCH = 1

    @property
    def label(self) -> str:
        """The name that users write: `interactive` or `batch`."""
        return self.name.lower()


class DryPenalty(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a token loses that would go on repeating (DRY, as llama.cpp has it): `multiplier` * `base` ** (n -
    `allowed_length`) behind n tokens that stood there before in the same order, if n is not less."""

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    last_n: int | None = None
    """So many tokens are looked at, prompt included; None: all."""
    breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """No repetition goes on over a token that has one of these."""

    @property
    def is_sound(self) -> bool:
        """Whether its numbers are within their bounds."""
        last_n = 0 if self.last_n is None else self.last_n
        is_strong = DRY_MULTIPLIER.hold(self.multiplier) and DRY_BASE.hold(self.base)
        return is_strong and COUNT.hold(self.allowed_length) and COUNT.hold(last_n)


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose the next token. The defaults leave the model's distribution as it is."""

    seed: int
    """Every draw comes from a generator positioned by (seed, output position)."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    """Divides the logits of the last `repeat_last_n` tokens, prompt included (llama.cpp's)."""
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token in the output so far (OpenAI's)."""
    frequency_penalty: float = 0.0
    """Subtracted for each time that a token is in the output so far (OpenAI's)."""
    logit_bias: dict[int, float] = {}
    top_n_sigma: float = 0.0
    """Only tokens whose logit is at most so many standard deviations below the largest; 0: all."""
    xtc_probability: float = 0.0
    """How often all tokens but the last of those with a probability of `xtc_threshold` are left out (XTC)."""
    xtc_threshold: float = 0.1
    dry: DryPenalty | None = None
    min_tokens: int = 0
    """No token ends the generation before so many."""
    stop_tokens: tuple[int, ...] = ()
    """They end it as the model's own end tokens do."""
    scored: tuple[int, ...] = ()
    """Tokens that are told behind the likeliest ones, where log-probabilities are asked for."""
    ignore_eos: bool = False
    """Never sample a token that ends the generation."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Rows of tokens, none of them empty: the last one of a row does not come behind the others."""


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
    """What the output must look like: first there may be thoughts, and behind them is the answer."""

    grammar: str | None = None
    """Lark that surely compiles in llguidance; None: the answer is free."""
    opening: tuple[int, ...] = ()
    """Tokens before the grammar with which the answer begins (the marker of a tool call)."""
    triggers: tuple[str, ...] = ()
    """The answer is free until it contains one of these (control tokens by name); then the grammar begins.

    (): the grammar begins with the answer's first token. Thoughts must be certain then, or impossible.
    """
    thinking: Thinking | None = None
    """How the answer's beginning is found that the constraint waits for. Stop strings wait for it, too.
    None: nothing waits."""


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine is asked to do, whatever it is."""

    id: str
    priority: Priority = Priority.INTERACTIVE
    client: str = ""
    """Whom to be fair to: an opaque label, equal for requests of the same client."""
    account: str = ""
    """Who answers for what the engine dies of: an opaque label of a key or an address; "": nobody does."""
    group: str = ""
    """Clients of one group have one turn among all, and take turns for it: those of one address, who may call
    themselves as they like. "": the client is alone."""
    route: str = ""
    """What kind of call it belongs to; outputs of one kind are expected to be alike in length."""

    @property
    def turns(self) -> tuple[str, str]:
        """Whose turn it is, among all and then in the group."""
        return self.group or self.client, self.client


class GenerationRequest(EngineRequest, frozen=True, kw_only=True, omit_defaults=True, tag="generate"):
    """One sequence to generate, which is one choice of one API call."""

    tokens: tuple[int, ...]
    """The prompt, which has at least one token. Rows of media are in it as `media.row_numbers`."""
    media_items: tuple[MediaItem, ...] = ()
    media: tuple[Medium, ...] = ()
    """Where their rows stand in the prompt, in order. Behind the last one there are tokens."""
    borders: tuple[int, ...] = ()
    """Lengths of beginnings of the prompt, ascending, behind which other prompts are likely to differ: the
    system prompt and tools, all before the last user's text, all before the answer. The last may be all of
    the prompt. (): nothing is known.
    """
    max_tokens: int
    """The most output tokens; 0 computes (and scores) the prompt only."""
    sampling: Sampling
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    """How many alternatives get log-probabilities beside each sampled token;
    None: no log-probabilities at all."""
    prompt_logprobs: bool = False
    """Also report the log-probability of every prompt token but the first."""
    scores_end: bool = False
    """The token that ends the output is reported too, with its log-probability and no text."""
    cache_namespace: str = ""
    """Only requests of the same namespace share computed prompts (cache salt, API key)."""
    adapter: str | None = None
    """The adapter that changes its model; None: the model as it is. It is its name until the engine that
    accepts the request puts its key in place of that.
    """
    constraint: Constraint | None = None
    marks: OutputMarks | None = None
    """How thoughts are told from the answer; None: all of the output is the answer."""
    show_control_tokens: bool = False
    """Whether control tokens (`[TOOL_CALLS]`) are text in the output, except those that end it;
    else they are silent."""
    tells_progress: bool = False
    """It is told how far its prompt is computed, after each step until its first token."""
    pin: bool = False
    """Keep the prompt in the prefix cache for good."""

    @property
    def num_tokens(self) -> int:
        """The tokens of its prompt."""
        return len(self.tokens)

    def item_of(self, medium: int) -> MediaItem:
        """Whose rows they are; `medium`: a place in `media`."""
        return self.media_items[self.media[medium].item]

    @property
    def cells_namespace(self) -> str:
        """Only requests of the same have cells that mean the same: those of an adapter are others."""
        return self.cache_namespace if self.adapter is None else f"{self.cache_namespace}+{self.adapter}"

    @property
    def total_tokens(self) -> int:
        """The most KV cells that the request can hold."""
        return len(self.tokens) + self.max_tokens

    def wrong_number(self, *, vocab_size: int) -> str | None:
        """What of it no native code may see; None: nothing. The API lets none of that pass."""
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
