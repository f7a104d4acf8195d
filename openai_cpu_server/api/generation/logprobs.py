"""Log-probabilities of tokens, in the form that several families share."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from openai_cpu_server.contract import messages
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.models.served import PieceTexts, finite_logprob


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
    """Log-probabilities of an answer, held back until their text is out."""

    def __init__(self) -> None:
        self._num_scores = 0
        self._held: list[TokenLogprob] = []
        self._released: list[TokenLogprob] = []

    def add(self, event: messages.TokenEvent) -> None:
        self._num_scores += len(event.logprobs)
        self._held += event.logprobs
        if event.answer_start is not None:
            first = max(0, event.answer_start - self._num_scores + len(self._held))
            self._released += self._held[first:]
            self._held = []

    def take(self) -> list[TokenLogprob]:
        released, self._released = self._released, []
        return released


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[TokenEntry]
    refusal: None = None


def chat_logprobs(entries: Sequence[TokenLogprob], pieces: PieceTexts) -> ChatLogprobs:
    content = []
    for entry in entries:
        piece = pieces[entry.token]
        others = [(pieces[token], finite_logprob(logprob)) for token, logprob in entry.top]
        top = [TopToken(other.text, logprob, other.bytes) for other, logprob in others]
        content.append(TokenEntry(piece.text, finite_logprob(entry.logprob), piece.bytes, top))
    return ChatLogprobs(content)
