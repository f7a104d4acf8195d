"""*layouts*: best layout of models' weights for this CPU, as an engine chooses it at the first load.

Times are milliseconds of CPU time of one thread for all products of a type in a step, scaled up from those of
a small part. Nothing is kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from bench.options import gguf

from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.loading import switch_kernels
from openai_cpu_server.llama.measure.layout import STEPS, ProductTimes, faster_layout, timed_products


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", type=gguf, metavar="MODEL", help="as `serve --model` takes it")
    parser.add_argument("--kernels", choices=("auto", "off"), default="auto")


def run(asked: argparse.Namespace) -> None:
    kernels = switch_kernels(asked.kernels)
    heads = ("model", "type", "by", *(f"{n} tokens" for n in STEPS), "decided")
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    for model in asked.models:
        found = list(timed_products(GgufHeader(model), kernels))
        for row in _rows(model, found, str(faster_layout(found))):
            print(f"| {' | '.join(row)} |", flush=True)


def _rows(model: Path, found: list[ProductTimes], decision: str) -> Iterator[tuple[str, ...]]:
    for group in found:
        kind = f"{group.type}, experts" if group.are_experts else group.type
        for by, times in (("ours", group.ours), ("ggml", group.ggml), ("ggml, repacked", group.repacked)):
            if times is not None:
                yield (model.stem, kind, by, *(f"{1e3 * times[n]:.1f}" for n in STEPS), decision)
                decision = ""
