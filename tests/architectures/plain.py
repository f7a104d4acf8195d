"""Plain llama.cpp in a process of its own: greedy answers of a model to one prompt after the other.

`python -m tests.architectures.plain MODEL [PROJECTOR]` reads lines of `{"prompt": [token, ...],
"length": n}`; in place of a token there may be a picture or a sound, as its width and its height or the
number of its samples, and its content in base64.
"""

from __future__ import annotations

import base64
import ctypes
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from openai_cpu_server.contract.media import MediaItem, Picture
from openai_cpu_server.llama.bindings import llama_cpp, mtmd_library

_CELLS = 1024


class Answer(NamedTuple):
    tokens: list[int]
    logprobs: list[list[float]]
    """Log-probabilities of the whole vocabulary, before each of the tokens."""


class PlainLlama:
    """Client of the process, which `with` ends."""

    def __init__(self, model: Path, projector: Path | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *map(str, (model, projector)[: 1 + (projector is not None)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> PlainLlama:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def answer(self, prompt: Sequence[int | MediaItem], length: int) -> Answer:
        """Return `length` greedy tokens, leaving out those that end an answer."""
        parts = [part if isinstance(part, int) else _to_json(part) for part in prompt]
        self._process.stdin.write(json.dumps({"prompt": parts, "length": length}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"plain llama.cpp ends with {self._process.wait()}"
        return Answer(*json.loads(line))


def _to_json(item: MediaItem) -> tuple[Sequence[int], str]:
    size = [item.size.width, item.size.height] if isinstance(item, Picture) else [item.size.num_samples]
    return size, base64.b64encode(item.content).decode()


_silent = llama_cpp.llama_log_callback(lambda *_: None)


class _Plain:
    def __init__(self, path: str, projector: str | None = None) -> None:
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
        self._media = None if projector is None else _Media(projector, self._model, self._context)
        self._ends = [t for t in range(self._size) if llama_cpp.llama_vocab_is_eog(vocabulary, t)]

    def answer(self, prompt: Sequence[Any], length: int) -> Answer:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        tokens, all_logprobs = [], []
        for logprobs in self._logprobs(prompt, tokens, length):
            all_logprobs.append(np.round(logprobs, 3).tolist())
            logprobs[self._ends] = -np.inf
            tokens.append(int(logprobs.argmax()))
        return Answer(tokens, all_logprobs)

    def _logprobs(
        self, prompt: Sequence[Any], tokens: list[int], length: int
    ) -> Iterator[npt.NDArray[np.float64]]:
        end, unread = 0, list[int]()
        for part in prompt:
            if isinstance(part, int):
                unread.append(part)
                continue
            if unread:
                self._compute(unread, end)
            end, unread = self._media.compute(part, end + len(unread)), []
        yield self._compute(unread, end)
        end += len(unread)
        while len(tokens) < length:
            yield self._compute(tokens[-1:], end + len(tokens) - 1)

    def _compute(self, tokens: Sequence[int], start: int) -> npt.NDArray[np.float64]:
        """Return the log-probabilities after the last of the tokens."""
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


class _Media:
    """Pictures and sounds, computed by the helpers of libmtmd."""

    def __init__(self, projector: str, model: object, context: object) -> None:
        self._mtmd = mtmd = mtmd_library()
        mtmd.mtmd_helper_log_set(_silent, None)
        params = mtmd.mtmd_context_params_default()
        params.use_gpu = params.warmup = params.print_timings = False
        params.n_threads = 1
        self._handle = mtmd.mtmd_init_from_file(projector.encode(), model, params)
        self._context = context

    def compute(self, item: Sequence[Any], position: int) -> int:
        """Compute the item at a position, with its surrounding tokens, and return the position after them."""
        mtmd, (size, content) = self._mtmd, item
        data = np.frombuffer(base64.b64decode(content), np.uint8).ctypes
        if len(size) == 2:
            bitmap = mtmd.mtmd_bitmap_init(*size, data.data_as(ctypes.POINTER(ctypes.c_uint8)))
        else:
            samples = data.data_as(ctypes.POINTER(ctypes.c_float))
            bitmap = mtmd.mtmd_bitmap_init_from_audio(*size, samples)
        chunks = mtmd.mtmd_input_chunks_init()
        marker = mtmd.mtmd_default_marker()
        text = mtmd.mtmd_input_text(marker, len(marker), False, True)
        bitmaps = (ctypes.c_void_p * 1)(bitmap)
        assert mtmd.mtmd_tokenize(self._handle, chunks, ctypes.byref(text), bitmaps, 1) == 0
        end = ctypes.c_int32(position)
        code = mtmd.mtmd_helper_eval_chunks(
            self._handle, self._context, chunks, position, 0, _CELLS, False, ctypes.byref(end)
        )
        assert code == 0, f"mtmd_helper_eval_chunks returns {code}"
        mtmd.mtmd_input_chunks_free(chunks)
        mtmd.mtmd_bitmap_free(bitmap)
        return end.value


def main() -> None:
    plain = _Plain(*sys.argv[1:])
    for line in sys.stdin:
        sys.stdout.write(json.dumps(plain.answer(**json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
