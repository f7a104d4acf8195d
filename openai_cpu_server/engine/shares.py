"""Whose work a step was: its CPU time, shared among clients."""

from __future__ import annotations

from collections.abc import Iterable


def shared_ms(parts: Iterable[tuple[str, int]], cpu_ms: float) -> dict[str, float]:
    """The milliseconds of each client: its part of the step's tokens is its part of the step's time.

    `parts`: clients and numbers of tokens; a client may come several times. Padding is everybody's.
    """
    tokens: dict[str, int] = {}
    for client, num_tokens in parts:
        tokens[client] = tokens.get(client, 0) + num_tokens
    total = sum(tokens.values())
    return {client: cpu_ms * count / total for client, count in tokens.items()} if total else {}
