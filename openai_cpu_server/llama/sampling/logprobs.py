"""Natural log-probabilities under the model's own distribution."""

from __future__ import annotations

import numpy as np

from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.errors import ServerError
from openai_cpu_server.llama.cells.context import Logits


class BadLogits(ServerError):
    """The model computed something that is no distribution (NaN, or nothing above minus infinity)."""


def score(logits: Logits, token: int, num_top: int, also: tuple[int, ...] = ()) -> TokenLogprob:
    """(vocabulary,) before any sampling parameter -> the token's score, and those of the `num_top` best and
    of the tokens in `also`.

    Raises `BadLogits`.
    """
    offset = _log_sum_exp(logits)
    top = tuple((best, float(logits[best]) - offset) for best in (*_best(logits, num_top), *also))
    return TokenLogprob(token=token, logprob=float(logits[token]) - offset, top=top)


def _log_sum_exp(logits: Logits) -> float:
    largest = logits.max()
    if not np.isfinite(largest):
        raise BadLogits(f"The largest logit is {largest}.")
    return float(largest) + float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))


def _best(logits: Logits, count: int) -> list[int]:
    """The tokens with the largest logits, best first."""
    count = min(count, len(logits))
    if count == 0:
        return []
    found = np.argpartition(logits, -count)[-count:]
    return [int(token) for token in sorted(found, key=lambda token: (-logits[token], token))]
