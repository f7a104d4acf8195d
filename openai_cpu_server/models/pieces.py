"""Tokens as log-probabilities show them."""

from __future__ import annotations

import msgspec

from openai_cpu_server.contract.model_info import Tokenizer

LOWEST = -9999.0
"""It stands for minus infinity, which JSON cannot say."""


class Piece(msgspec.Struct, frozen=True):
    """A token's text and bytes. Control tokens show their name and have no bytes."""

    text: str
    bytes: tuple[int, ...] | None


class Pieces:
    """Remembers every token once shown: top log-probabilities name the same ones over and over."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._known: dict[int, Piece] = {}

    def __getitem__(self, token: int) -> Piece:
        piece = self._known.get(token)
        if piece is None:
            piece = self._known[token] = self._look_up(token)
        return piece

    def _look_up(self, token: int) -> Piece:
        raw = self.tokenizer.piece(token)
        if not raw:
            return Piece(_text(self.tokenizer.piece(token, special=True)), None)
        return Piece(_text(raw), tuple(raw))


def finite(logprob: float) -> float:
    return logprob if logprob > LOWEST else LOWEST


def _text(raw: bytes) -> str:
    r"""Bytes that are no text by themselves are written as OpenAI does: `bytes:\xe2\x82`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
