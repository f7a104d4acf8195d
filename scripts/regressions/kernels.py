"""*kernels*: products of weights, ggml's against ours, by type and number of rows.

With `--experts` those of a mixture: each row goes through some of them, chosen at random. There are so many
copies of the weights that no cache holds them, as in a model. Both sides take turns, and the best of all
rounds counts, because other work on the machine only makes a round slower. One thread alone is measured by
its CPU time, so that the machine may be busy.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import math
import os
import time
from collections.abc import Callable, Sequence

import numpy as np
from bench.traffic import Failed
from llama_cpp._ggml import libggml

from openai_cpu_server.kernels.graphs import (
    PRODUCT_TYPES,
    GgmlGraphs,
    GgmlType,
    Packed,
    ProductCase,
    random_weights,
)
from openai_cpu_server.kernels.library import Kernel, KernelLibrary, library_path, obstacle

_WEIGHT_BYTES = 100_000_000
_LEAST_ROUNDS = 9
_TYPES = {kind.name.lower(): kind for kind in PRODUCT_TYPES}


def kernel_library(name: str) -> KernelLibrary:
    """Return our kernels, loaded before ggml's. Raises Failed if there are none."""
    if why_not := obstacle():
        raise Failed(f"{name}: {why_not}")
    return KernelLibrary(ctypes.CDLL(str(library_path())))


def best_of_both(
    library: KernelLibrary,
    kernels: Sequence[Kernel],
    timed: Callable[[], float],
    rounds: int,
    seconds: float = 0.0,
) -> tuple[float, float]:
    """Return best times of ggml and of ours, in turns: so many rounds at least, and so long."""
    best = [float("inf"), float("inf")]
    end_s, number = time.perf_counter() + seconds, 0
    while number < rounds or time.perf_counter() < end_s:
        number += 1
        for is_ours in (False, True):
            for kernel in kernels:
                (library.switch_on if is_ours else library.switch_off)(kernel)
            best[is_ours] = min(best[is_ours], timed())
    return best[False], best[True]


def computing_s(compute: Callable[[int], object], threads: int) -> float:
    """Measure one thread's CPU time, which other processes do not lengthen."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    start = clock()
    compute(threads)
    return clock() - start


def _case(
    kind: GgmlType, weights: Packed, rows: int, options: argparse.Namespace, random: np.random.Generator
) -> ProductCase:
    activations = random.standard_normal((rows, options.depth), np.float32)
    if options.experts == 1:
        return ProductCase(weights=weights, activations=activations, weight_type=kind)
    chosen = random.random((rows, options.experts)).argsort(axis=1)[:, : options.used].astype(np.int32)
    return ProductCase(weights=weights, activations=activations[:, None], weight_type=kind, experts=chosen)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--types", nargs="+", choices=_TYPES, default=list(_TYPES))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64, 256], metavar="N")
    parser.add_argument("--experts", type=int, default=1, metavar="N", help="matrices of a mixture")
    parser.add_argument("--used", type=int, default=8, metavar="N", help="experts of a row of a mixture")
    parser.add_argument("--outputs", type=int, default=2048, metavar="N", help="rows of weights")
    parser.add_argument("--depth", type=int, default=2048, metavar="N", help="a multiple of 256")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--seconds", type=float, default=0.7, help="for each line (default %(default)s)")


def run(options: argparse.Namespace) -> None:
    graphs, library = GgmlGraphs(libggml), kernel_library("kernels")
    random, threads = np.random.default_rng(0), options.threads
    shape = (options.experts, options.outputs, options.depth)[options.experts == 1 :]
    print(f"{' x '.join(map(str, shape))}, {threads} threads, {library.instruction_set}\n")
    print("| type | rows | ggml, ms | ours, ms | ratio | ours, G multiply-adds/s |")
    print("|---|---|---|---|---|---|")
    for name in options.types:
        weights = random_weights(_TYPES[name], options.experts * options.outputs, options.depth, random)
        for rows in options.rows:
            case = _case(_TYPES[name], weights.reshape(*shape[:-1], -1), rows, options, random)
            share = 1 if case.experts is None else min(1, case.experts.size / options.experts)
            copies = max(1, int(_WEIGHT_BYTES / (share * weights.nbytes)) // (1 if rows <= 32 else 4))
            with graphs.multiplying(case, copies=copies) as multiply:
                timed = functools.partial(computing_s, multiply, threads)
                best = best_of_both(library, [Kernel.PRODUCTS], timed, _LEAST_ROUNDS, options.seconds)
            ggml, ours = (seconds / copies for seconds in best)
            speed = math.prod(case.shape) * options.depth / ours / 1e9
            print(
                f"| {name} | {rows} | {ggml * 1e3:.3f} | {ours * 1e3:.3f} | {ggml / ours:.2f} "
                f"| {speed:.0f} |",
                flush=True,
            )
