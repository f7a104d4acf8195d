"""What it costs to copy cells between the pool and host memory: learned apart from what tokens cost."""

from __future__ import annotations

from collections.abc import Iterable

from openai_cpu_server.contract.step import Restore, Save, Verb

_FIRST_TOKEN_MS = 0.003
"""Before anything is learned: 1,024 tokens of 34 MB take 3 ms each way (docs/measurements.md)."""
_RATE = 0.1
"""Share of a new measurement in the price: some ten of them count."""


class CopyPrice:
    """Milliseconds for each token that a step's verbs save or restore."""

    def __init__(self) -> None:
        self._token_ms = _FIRST_TOKEN_MS

    def predict_ms(self, verbs: Iterable[Verb]) -> float:
        return self._token_ms * _num_copied(verbs)

    def learn(self, verbs: Iterable[Verb], elapsed_ms: float) -> None:
        """These verbs took so long together."""
        num_tokens = _num_copied(verbs)
        if num_tokens:
            self._token_ms += _RATE * (elapsed_ms / num_tokens - self._token_ms)


def _num_copied(verbs: Iterable[Verb]) -> int:
    return sum(verb.end - verb.start for verb in verbs if isinstance(verb, (Save, Restore)))
