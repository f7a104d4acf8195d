"""*roofline*: products by AMX, as shares of the peak of its tiles, by type and number of rows.

The peak is that of tiles which multiply the same numbers from registers again and again, at the same time in
as many threads. Without AMX there is nothing to measure; `--emulated` shows that the command works.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from bench.traffic import Failed
from llama_cpp._ggml import libggml

from openai_cpu_server.kernels.graphs import TILE_TYPES, GgmlGraphs, GgmlType, ProductCase, random_weights
from openai_cpu_server.kernels.library import Kernel, KernelLibrary, library_path
from regressions.kernels import computing_s, kernel_library

_TYPES = {kind.name.lower(): kind for kind in TILE_TYPES}
_WEIGHT_BYTES = 64_000_000
_PEAK_ROUNDS = 4_000_000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--types", nargs="+", choices=_TYPES, default=list(_TYPES))
    parser.add_argument("--rows", nargs="+", type=int, default=[128, 512, 2048], metavar="N")
    parser.add_argument("--outputs", type=int, default=2048, metavar="N", help="rows of weights")
    parser.add_argument("--depth", type=int, default=2048, metavar="N", help="a multiple of 256")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--rounds", type=int, default=7, help="the best counts (default %(default)s)")
    parser.add_argument("--emulated", action="store_true", help="without AMX; the figures mean nothing")


def run(options: argparse.Namespace) -> None:
    library = kernel_library("roofline")
    if library.why_no_tiles and not options.emulated:
        raise Failed(f"roofline: {library.why_no_tiles}")
    peak = _peak(options.threads, _PEAK_ROUNDS if not library.why_no_tiles else 100)
    print(f"{options.outputs} x {options.depth}, {options.threads} threads; peak {peak / 1e9:.0f} G/s\n")
    print("| type |", " | ".join(f"{rows} rows, G multiply-adds/s; share" for rows in options.rows), "|")
    print("|---" * (1 + len(options.rows)), "|", sep="")
    library.switch_on(Kernel.TILES)
    for name in options.types:
        speeds = [_speed(library, _TYPES[name], rows, options) for rows in options.rows]
        cells = (f"{speed / 1e9:.0f}; {speed / peak:.0%}" for speed in speeds)
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


def _speed(library: KernelLibrary, kind: GgmlType, rows: int, options: argparse.Namespace) -> float:
    """Return multiply-adds per second, with weights from memory."""
    random = np.random.default_rng(0)
    case = ProductCase(
        weights=random_weights(kind, options.outputs, options.depth, random, size=1e-2),
        activations=random.standard_normal((rows, options.depth), np.float32),
        weight_type=kind,
    )
    copies = max(1, _WEIGHT_BYTES // case.weights.nbytes) if not options.emulated else 1
    library.use_tiles_from(kind, 1)
    with GgmlGraphs(libggml).multiplying(case, copies=copies) as compute:
        best = min(computing_s(compute, options.threads) for _ in range(options.rounds))
    return copies * rows * options.outputs * options.depth / best


def _peak(threads: int, rounds: int) -> float:
    multiply = ctypes.CDLL(str(library_path())).ocs_multiply_tiles
    multiply.restype, multiply.argtypes = ctypes.c_long, [ctypes.c_long, ctypes.c_void_p]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(3):
            started = time.perf_counter()
            done = sum(pool.map(lambda _: multiply(rounds, ctypes.byref(ctypes.c_float())), range(threads)))
            best = max(best, done / (time.perf_counter() - started))
    return best
