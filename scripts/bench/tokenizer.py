"""Turns text into the tokens of the model that a server serves."""

from __future__ import annotations

import msgspec

from bench.http_client import call


class _Tokenized(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]


async def tokenize(port: int, text: str) -> tuple[int, ...]:
    """The tokens without a BOS. Raises HttpFailed."""
    body = msgspec.json.encode({"content": text, "add_special": False})
    return msgspec.json.decode(await call(port, "POST", "/tokenize", body), type=_Tokenized).tokens
