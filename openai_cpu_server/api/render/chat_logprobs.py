"""Log-probabilities in the shape of chat completions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.models.pieces import Pieces, finite


class TopToken(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[int, ...] | None


class TokenEntry(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[int, ...] | None
    top_logprobs: list[TopToken]


class ContentScores:
    """Log-probabilities of one output's answer alone, as `logprobs.content` has them, and not of thoughts or
    their marks. What may still be one is held back."""

    def __init__(self) -> None:
        self._num_heard = 0
        self._held: list[TokenLogprob] = []

    def known(self, event: TokenEvent) -> list[TokenLogprob]:
        """Those of the answer that are known with this event."""
        self._num_heard += len(event.logprobs)
        self._held += event.logprobs
        if event.answer_start is None:
            return []
        first = max(0, event.answer_start - self._num_heard + len(self._held))
        known, self._held = self._held[first:], []
        return known


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[TokenEntry]
    refusal: None = None


def chat_logprobs(entries: Sequence[TokenLogprob], pieces: Pieces) -> ChatLogprobs:
    return ChatLogprobs([_entry(entry, pieces) for entry in entries])


def _entry(entry: TokenLogprob, pieces: Pieces) -> TokenEntry:
    piece = pieces[entry.token]
    top = [_top(token, logprob, pieces) for token, logprob in entry.top]
    return TokenEntry(piece.text, finite(entry.logprob), piece.bytes, top)


def _top(token: int, logprob: float, pieces: Pieces) -> TopToken:
    piece = pieces[token]
    return TopToken(piece.text, finite(logprob), piece.bytes)
