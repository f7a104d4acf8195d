"""Which of several turns means most nearly the same as another. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_NUMBER = np.dtype("<f4")


class Near(NamedTuple):
    key: str
    similarity: float
    """The cosine."""


def direction(numbers: Sequence[float] | np.typing.NDArray[np.float32]) -> bytes | None:
    """A vector of length 1 as bytes; None for one that points nowhere."""
    vector = np.asarray(numbers, _NUMBER)
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length) or length == 0.0:
        return None
    return (vector / length).astype(_NUMBER).tobytes()


def nearest(rows: Sequence[tuple[str, bytes]], vector: bytes, *, at_least: float) -> list[Near]:
    """Those that are as similar as that, the most similar first. Rows of another length are none."""
    known = [(key, row) for key, row in rows if len(row) == len(vector)]
    if not known:
        return []
    table = np.frombuffer(b"".join(row for _, row in known), _NUMBER).reshape(len(known), -1)
    cosines = table @ np.frombuffer(vector, _NUMBER)
    order = np.argsort(-cosines, kind="stable")
    best = [Near(known[index][0], float(cosines[index])) for index in order]
    return [near for near in best if near.similarity >= at_least]
