"""Fill-in-the-middle: the model writes what belongs between two texts."""

from __future__ import annotations

from collections.abc import Sequence

from openai_cpu_server.contract.model_info import FimTokens


def fim_tokens(prefix: Sequence[int], suffix: Sequence[int], fim: FimTokens) -> tuple[int, ...]:
    """The prompt in the order prefix, suffix, middle: what the model generates then is the middle."""
    return (fim.prefix, *prefix, fim.suffix, *suffix, fim.middle)
