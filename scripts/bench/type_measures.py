"""Measures one file of weights with one type of cells, for `scripts/type_table.py`; writes JSON.

cd scripts && python -m openai_cpu_server.kernels.front bench.type_measures speed|quality ...
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import llama_cpp
import msgspec
import numpy as np
import numpy.typing as npt

from bench.type_figures import ROWS, Quality, Speed
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.llama.loading import switch_kernels
from openai_cpu_server.llama.measure.probe import Probe
from openai_cpu_server.llama.model.kv_size import KVType

_CONTEXT = 256
"""The cells of each sequence in the steps that are timed."""
_ROUNDS = 7
_WINDOW = 512
"""Tokens that are read without a view of what is before them."""

Doubles = npt.NDArray[np.float64]


def main() -> None:
    what, *arguments = sys.argv[1:]
    measure = {"speed": speed, "quality": quality}[what]
    sys.stdout.buffer.write(msgspec.json.encode(measure(*arguments)))


def speed(model: str, kv_type: str) -> Speed:
    """Steps in which sequences of `_CONTEXT` cells decode: the best of some rounds."""
    options = EngineOptions(
        model_path=model,
        kv_tokens=(max(ROWS) + 1) * (_CONTEXT + _ROUNDS),
        kv_type=kv_type,
        max_seqs=max(ROWS) + 1,
        prefill_tokens=_CONTEXT,
    )
    backend = LlamaBackend.load(options, lambda fraction: None)
    with Probe(backend) as probe:
        probe.compute({0: _CONTEXT})
        probe.copy(0, range(1, max(ROWS)))
        ms = {rows: min(_timed(probe, rows) for _ in range(_ROUNDS)) for rows in ROWS}
    backend.close()
    return Speed(tuple(1000 * rows / ms[rows] for rows in ROWS))


def _timed(probe: Probe, rows: int) -> float:
    return probe.compute(dict.fromkeys(range(rows), 1))


def quality(reference: str, model: str, kv_type: str, text: str, num_windows: str = "4") -> Quality:
    """Beside the reference with cells of floats, over a text. Raises ValueError if that is too short."""
    switch_kernels("auto")
    exact, stored = (
        _Reader(reference, KVType.F32, flash=False),
        _Reader(model, KVType.named(kv_type), flash=True),
    )
    tokens = exact.tokens(Path(text).read_text(encoding="utf-8"), _WINDOW * int(num_windows))
    found, losses, base = [], [], []
    for start in range(0, len(tokens), _WINDOW):
        window = tokens[start : start + _WINDOW]
        theirs, ours = exact.logprobs(window), stored.logprobs(window)
        found.append(np.sum(np.exp(theirs) * (theirs - ours), axis=1))
        following = np.arange(len(window) - 1), np.array(window[1:])
        losses.append(-ours[:-1][following])
        base.append(-theirs[:-1][following])
    divergence = np.concatenate(found)
    return Quality(
        mean_divergence=float(divergence.mean()),
        max_divergence=float(divergence.max()),
        perplexity=float(np.exp(np.concatenate(losses).mean())),
        reference_perplexity=float(np.exp(np.concatenate(base).mean())),
        num_tokens=divergence.size,
    )


class _Reader:
    """A model with a context of one window. It lives until the process ends."""

    def __init__(self, path: str, kv_type: KVType, *, flash: bool) -> None:
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), _model_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = _WINDOW
        params.n_threads = params.n_threads_batch = Machine().num_threads()
        params.type_k = params.type_v = kv_type.ggml_type
        params.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise ValueError(f"{path} cannot be loaded with {kv_type.label} cells")
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._num_tokens = llama_cpp.llama_vocab_n_tokens(self._vocab)

    def tokens(self, text: str, wanted: int) -> list[int]:
        data, room = text.encode(), (llama_cpp.llama_token * len(text.encode()))()
        count = llama_cpp.llama_tokenize(self._vocab, data, len(data), room, len(room), False, False)
        if count < wanted:
            raise ValueError(f"the text has {count} tokens, not {wanted}")
        return list(room[:wanted])

    def logprobs(self, window: list[int]) -> Doubles:
        """(tokens, vocabulary): what comes after each token."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        batch = llama_cpp.llama_batch_init(len(window), 0, 1)
        batch.n_tokens = len(window)
        for i, token in enumerate(window):
            batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        failed = llama_cpp.llama_decode(self._context, batch)
        llama_cpp.llama_batch_free(batch)
        assert not failed, f"llama_decode: {failed}"
        return np.stack(list(self._rows(len(window))))

    def _rows(self, count: int) -> Iterator[Doubles]:
        for i in range(count):
            pointer = llama_cpp.llama_get_logits_ith(self._context, i)
            logits = np.ctypeslib.as_array(pointer, (self._num_tokens,)).astype(np.float64)
            logits -= logits.max()
            yield logits - np.log(np.sum(np.exp(logits)))


def _model_params() -> ctypes.Structure:
    params = llama_cpp.llama_model_default_params()
    params.use_extra_bufts = False  # weights as the file has them: those our kernels read
    return params


if __name__ == "__main__":
    main()
