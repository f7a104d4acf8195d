"""*types*: types of weights and of KV cells: their speed and loss. Writes docs/types.md.

Files are made with `openai-cpu-server quantize`, one at a time, in a temporary folder that needs 1.5 GB.
Speed is that of random weights in the shape of 1.04 B parameters; nothing else should run. Loss is measured
on SmolLM2, with our kernels and with ggml alone. No package has it unquantised: the reference is the Q4_1
file with its weights unpacked to f16 and zeros added (`widened`), so the loss of that type itself is not
included. Each measurement has a process of its own; the reference reads the text once for all.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import msgspec
import numpy as np
import numpy.typing as npt
from bench.circumstances import cpu_name
from bench.model import made_model, stored

from openai_cpu_server.config.folders import HUGE_PAGES
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.llama.loading import switch_kernels
from openai_cpu_server.llama.measure.probe import Probe
from openai_cpu_server.llama.model.kv_size import KVType
from openai_cpu_server.model_source.package import PACKAGED
from regressions.widened import widened

_SCRIPTS = Path(__file__).resolve().parents[1]
_PAGE = _SCRIPTS.parent / "docs" / "types.md"
TEXT = _SCRIPTS.parent / "model_assets" / "README.md"
BEGIN, END = "<!-- regress.py types: begin -->", "<!-- regress.py types: end -->"
_TYPES = (
    *("f16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "iq4_xs", "iq4_nl", "q4_1", "q4_0", "mxfp4"),
    *("q3_k_m", "iq3_s", "q2_k"),
)
_CELLS = ("f16", "q8_0")
_SHAPE = "1b"
_CONTEXT = 256
_ROUNDS = 7
_WINDOW = 512
"""Tokens that are read without those before them."""

Doubles = npt.NDArray[np.float64]
ROWS = (1, 8, 32)


class Speed(msgspec.Struct, frozen=True):
    tokens_per_s: tuple[float, ...]
    """For each of `ROWS`: sequences that decode together."""


class Quality(msgspec.Struct, frozen=True):
    mean_divergence: float
    """Kullback-Leibler divergence from the reference, in nats."""
    max_divergence: float
    perplexity: float
    reference_perplexity: float
    num_tokens: int


class Loss(msgspec.Struct, frozen=True):
    ours: Quality
    ggml: Quality
    error_of_difference: float
    """Standard error of the difference of both means, as if tokens were independent of each other."""


@dataclass(frozen=True)
class Row:
    weights: str
    cells: str
    megabytes: float
    speed: Speed | None
    judged_megabytes: float
    loss: Loss


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--types", nargs="+", choices=_TYPES, default=_TYPES)
    parser.add_argument("--cells", nargs="+", choices=_CELLS, default=_CELLS)
    parser.add_argument(
        "--loss-only", action="store_true", help="do not time steps, which wants a quiet machine"
    )
    parser.add_argument("--windows", type=int, default=4, metavar="N", help=f"of {_WINDOW} tokens of text")
    parser.add_argument("--write", action="store_true", help="put the table into docs/types.md")


def run(asked: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="types-") as folder:
        found = table(list(_rows(asked, Path(folder))))
    print(found)
    if asked.write:
        write(found, _PAGE)


def _rows(asked: argparse.Namespace, folder: Path) -> Iterator[Row]:
    reference = widened(PACKAGED["smollm2"].path(), folder / "reference.gguf")
    expected = folder / "expected.npz"
    measured("reference", reference, TEXT, asked.windows, expected)
    for weights in asked.types:
        model = None if asked.loss_only else made_model(_SHAPE, weights)
        judged = stored(reference, weights, folder / "judged.gguf")
        for cells in asked.cells:
            print(f"{weights}, {cells} cells ...", file=sys.stderr, flush=True)
            row = Row(
                weights=weights,
                cells=cells,
                megabytes=model.stat().st_size / 1e6 if model else 0.0,
                speed=msgspec.json.decode(measured("speed", model, cells), type=Speed) if model else None,
                judged_megabytes=judged.stat().st_size / 1e6,
                loss=msgspec.json.decode(measured("loss", expected, judged, cells), type=Loss),
            )
            print(_line(list(_cells(row))), file=sys.stderr, flush=True)
            yield row


def measured(what: str, *arguments: str | int | Path) -> bytes:
    """Return the output of this module's `main` in a process of its own."""
    command = [sys.executable, "-m", "openai_cpu_server.kernels.front", __name__, what]
    environment = HUGE_PAGES | {**os.environ, "PYTHONPATH": f"{_SCRIPTS}:{_SCRIPTS.parent}"}
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"types: {what} fails: {done.stderr.decode(errors='replace').strip()[-500:]}")
    return done.stdout


def table(rows: list[Row]) -> str:
    speeds = ["1.04 B: MB", *(f"{count} {'row' if count == 1 else 'rows'}, tok/s" for count in ROWS)]
    losses = ["KL mean", "ggml's", "±", "KL max", "ggml's", "perplexity"]
    heads = ["weights", "cells", *(speeds if rows[0].speed else ()), "SmolLM2: MB", *losses]
    lines = [heads, ["---"] * len(heads), *([*_cells(row)] for row in rows)]
    drawn = "\n".join(map(_line, lines))
    first = rows[0].loss.ours
    return (
        f"{drawn}\n\n{time.strftime('%d %B %Y')}, CPU: {cpu_name()}. "
        f"Perplexity of the reference: {first.reference_perplexity:.2f}, over {first.num_tokens} tokens."
    )


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: Row) -> Iterator[str]:
    yield row.weights.upper() if row.weights != "f16" else row.weights
    yield row.cells
    if row.speed:
        yield f"{row.megabytes:.0f}"
        yield from (f"{rate:.1f}" for rate in row.speed.tokens_per_s)
    yield f"{row.judged_megabytes:.0f}"
    both = row.loss.ours, row.loss.ggml
    yield from (f"{quality.mean_divergence:.4f}" for quality in both)
    yield f"{row.loss.error_of_difference:.4f}"
    yield from (f"{quality.max_divergence:.2f}" for quality in both)
    yield f"{row.loss.ours.perplexity:.2f}"


def write(table: str, page: Path) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")


# -- in a process of its own -----------------------------------------------------------------------------


def main() -> None:
    what, *arguments = sys.argv[1:]
    measures: dict[str, Callable[..., msgspec.Struct | None]] = {
        "speed": speed,
        "reference": reference,
        "loss": loss,
    }
    sys.stdout.buffer.write(msgspec.json.encode(measures[what](*arguments)))


def speed(model: str, kv_type: str) -> Speed:
    """Measure steps in which sequences of `_CONTEXT` cells decode: the best of some rounds."""
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


def reference(model: str, text: str, num_windows: str, to: str) -> None:
    """Write the log-probabilities after each token of a text, by ggml alone with cells of floats. Raises
    ValueError if the text is too short."""
    switch_kernels("off")
    reader = _Reader(model, KVType.F32, flash=False)
    tokens = reader.tokens(Path(text).read_text(encoding="utf-8"), _WINDOW * int(num_windows))
    windows = np.array(tokens, np.int32).reshape(-1, _WINDOW)
    logprobs = np.stack([reader.logprobs(window.tolist()).astype(np.float32) for window in windows])
    np.savez(to, windows=windows, logprobs=logprobs)


def loss(expected: str, model: str, kv_type: str) -> Loss:
    with np.load(expected) as stored:
        windows, exact = stored["windows"], stored["logprobs"]
    judged = _Reader(model, KVType.named(kv_type), flash=True)
    by_ggml, ours = (_Judged.by(kernels, judged, windows, exact) for kernels in ("off", "auto"))
    difference = ours.divergence - by_ggml.divergence
    return Loss(ours.quality(), by_ggml.quality(), float(difference.std() / math.sqrt(difference.size)))


@dataclass(frozen=True)
class _Judged:
    divergence: Doubles
    """(tokens,): Kullback-Leibler's, in nats."""
    surprise: Doubles
    reference_surprise: Doubles

    @classmethod
    def by(
        cls, kernels: str, reader: _Reader, windows: npt.NDArray[np.int32], exact: npt.NDArray[np.float32]
    ) -> _Judged:
        switch_kernels(kernels)
        found = [
            _compared(window, reader.logprobs(window.tolist()), expected)
            for window, expected in zip(windows, exact, strict=True)
        ]
        return cls(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def quality(self) -> Quality:
        return Quality(
            mean_divergence=float(self.divergence.mean()),
            max_divergence=float(self.divergence.max()),
            perplexity=float(np.exp(self.surprise.mean())),
            reference_perplexity=float(np.exp(self.reference_surprise.mean())),
            num_tokens=self.divergence.size,
        )


def _compared(
    window: npt.NDArray[np.int32], judged: Doubles, exact: npt.NDArray[np.float32]
) -> tuple[Doubles, Doubles, Doubles]:
    divergence = np.sum(np.exp(exact) * (exact - judged), axis=1)
    places = np.arange(len(window) - 1), window[1:]
    return divergence, -judged[:-1][places], -exact[:-1][places].astype(np.float64)


class _Reader:
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
