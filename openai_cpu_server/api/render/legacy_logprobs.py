"""Log-probabilities in the shape of text completions: parallel lists, and where each token begins."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import msgspec

from openai_cpu_server.api.calls.call import Prompt
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.models.pieces import Pieces, finite

_utf8 = codecs.getincrementaldecoder("utf-8")


class LegacyLogprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def __add__(self, other: LegacyLogprobs) -> LegacyLogprobs:
        return LegacyLogprobs(
            self.tokens + other.tokens,
            self.token_logprobs + other.token_logprobs,
            self.top_logprobs + other.top_logprobs,
            self.text_offset + other.text_offset,
        )


class TextPosition:
    """Where the next token begins, in characters. A token within a character begins where that does."""

    def __init__(self, start: int) -> None:
        self._characters = start
        self._decoder = _utf8(errors="replace")

    def advance(self, piece: bytes) -> int:
        """Returns where the token with these bytes begins, and goes behind it."""
        begin = self._characters
        self._characters += len(self._decoder.decode(piece))
        return begin


class LegacyWriter:
    """Writes one choice's output, whose text begins at `start`, part by part."""

    def __init__(self, pieces: Pieces, start: int) -> None:
        self._pieces = pieces
        self._position = TextPosition(start)

    def write(self, entries: Sequence[TokenLogprob]) -> LegacyLogprobs:
        shown = [self._pieces[entry.token] for entry in entries]
        return LegacyLogprobs(
            [piece.text for piece in shown],
            [finite(entry.logprob) for entry in entries],
            [_top(entry, self._pieces) for entry in entries],
            [self._position.advance(bytes(piece.bytes or ())) for piece in shown],
        )


def prompt_logprobs(prompt: Prompt, scores: Sequence[TokenLogprob], pieces: Pieces) -> LegacyLogprobs:
    """The scores of an echoed prompt. Nothing is known of the first token; `scores[i]` belongs to token `i +
    1`."""
    return LegacyLogprobs(
        [pieces[token].text for token in prompt.tokens],
        [None, *(finite(score.logprob) for score in scores)],
        [None, *(_top(score, pieces) for score in scores)],
        _offsets(prompt, pieces),
    )


def _offsets(prompt: Prompt, pieces: Pieces) -> list[int]:
    """Where each token begins. The tokenizer may have put something first (BOS, a space) that the text does
    not have."""
    assert prompt.echo is not None, "only an echoed prompt is shown"
    tokenizer = pieces.tokenizer
    raw = [tokenizer.piece(token, special=True) for token in prompt.tokens]
    if prompt.tokens[0] == tokenizer.bos:
        raw[0] = b""
    position = TextPosition(0)
    begins = [position.advance(piece) for piece in raw]
    surplus = len(b"".join(raw).decode(errors="replace")) - len(prompt.echo)
    return [min(max(0, begin - surplus), len(prompt.echo)) for begin in begins]


def _top(entry: TokenLogprob, pieces: Pieces) -> dict[str, float]:
    """The alternatives, and the token itself where it is none of them."""
    top = {pieces[token].text: finite(logprob) for token, logprob in entry.top}
    top.setdefault(pieces[entry.token].text, finite(entry.logprob))
    return top
