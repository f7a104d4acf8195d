"""Plain llama.cpp, in a process of its own: what a model answers greedily to prompts that come one by one.

`python -m tests.architectures.plain MODEL` reads lines of `{"prompt": [token, ...], "length": n}`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from openai_cpu_server.llama.bindings import llama_cpp

_CELLS = 512


class Answer(NamedTuple):
    tokens: list[int]
    logprobs: list[list[float]]
    """Of the whole vocabulary, before each of the tokens."""


class PlainLlama:
    """The way to it. `with` ends the process."""

    def __init__(self, model: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> PlainLlama:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def answer(self, prompt: Sequence[int], length: int) -> Answer:
        """`length` tokens, whatever they are: those that end an answer are passed over."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"prompt": prompt, "length": length}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"plain llama.cpp ends with {self._process.wait()}"
        return Answer(*json.loads(line))


_silent = llama_cpp.llama_log_callback(lambda *_: None)


class _Plain:
    def __init__(self, path: str) -> None:
        llama_cpp.llama_log_set(_silent, None)
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = _CELLS
        params.n_threads = params.n_threads_batch = 1
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._ends = [t for t in range(self._size) if llama_cpp.llama_vocab_is_eog(vocabulary, t)]

    def answer(self, prompt: Sequence[int], length: int) -> Answer:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        tokens, all_logprobs = [], []
        for logprobs in self._followed(prompt, tokens, length):
            all_logprobs.append(np.round(logprobs, 3).tolist())
            logprobs[self._ends] = -np.inf
            tokens.append(int(logprobs.argmax()))
        return Answer(tokens, all_logprobs)

    def _followed(
        self, prompt: Sequence[int], tokens: list[int], length: int
    ) -> Iterator[npt.NDArray[np.float64]]:
        yield self._compute(prompt, 0)
        while len(tokens) < length:
            yield self._compute(tokens[-1:], len(prompt) + len(tokens) - 1)

    def _compute(self, tokens: Sequence[int], start: int) -> npt.NDArray[np.float64]:
        """The log-probabilities behind the last of the tokens."""
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, start + i, 1, 0
            batch.logits[i] = i == len(tokens) - 1
        code = llama_cpp.llama_decode(self._context, batch)
        llama_cpp.llama_batch_free(batch)
        assert code == 0, f"llama_decode returns {code}"
        pointer = llama_cpp.llama_get_logits_ith(self._context, -1)
        logits = np.ctypeslib.as_array(pointer, (self._size,)).astype(np.float64)
        return logits - np.logaddexp.reduce(logits)


def main() -> None:
    plain = _Plain(sys.argv[1])
    for line in sys.stdin:
        sys.stdout.write(json.dumps(plain.answer(**json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
