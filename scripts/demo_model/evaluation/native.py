"""Logits of a GGUF file, by llama.cpp."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import llama_cpp
import numpy as np
from numpy.typing import NDArray


class Native:
    """A model of llama.cpp's. Its opener closes it."""

    def __init__(self, path: Path, *, threads: int) -> None:
        self._llama = llama_cpp.Llama(
            str(path), n_ctx=0, n_threads=threads, n_threads_batch=threads, logits_all=True, verbose=False
        )

    @property
    def context(self) -> int:
        """The tokens of the longest document."""
        return int(self._llama.n_ctx())

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; control tokens written in it become tokens."""
        return list(self._llama.tokenize(text.encode(), add_bos=False, special=True))

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        """[tokens, vocabulary]: row i is what follows token i."""
        self._llama.reset()
        self._llama.eval(tokens)
        return np.array(self._llama.scores[: len(tokens)])

    def __enter__(self) -> Native:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._llama.close()
