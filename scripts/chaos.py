#!/usr/bin/env python3
"""Kills the engine, or the whole server, at random moments, and counts the damage.

    .venv/bin/python scripts/chaos.py [--requests 500] [--kills 200]
    .venv/bin/python scripts/chaos.py --readers [--requests 500] [--kills 100]
    .venv/bin/python scripts/chaos.py --ray [--requests 300] [--kills 50]
    .venv/bin/python scripts/chaos.py --batch [--rows 2000] [--kills 50]
    .venv/bin/python scripts/chaos.py --minutes 20 [--clients 8] [--kill-every 45]
    .venv/bin/python scripts/chaos.py --models a=FILE b=FILE minilm --memory 8000 [--minutes 10]

Streams: greedy, once undisturbed and once while the engine is killed (kill -9). Every stream must be complete
and equal to its undisturbed run. Streams that differ after a tie of the two best tokens (within 0.05) are
counted separately, because rounding decides. Some kills follow another within a second, during a load.
Readers: the same while the reader processes are killed. Every request must be answered as usual.
Ray: the same over two engine replicas. One at a time is killed, with its Ray actor.
Batch: API and engine are killed and the server is restarted. Every row must have one result.
Minutes: mixed traffic (chats, abandoned streams, schemas, tools, batches, WebSockets, invalid requests). The
memory of all processes may not grow after a quarter of the time. Nothing is killed without --kill-every.
Models: the same traffic over several models that do not fit side by side, with some kills. The engines
together may not exceed the budget.
The exit code is 1 if output is lost, duplicated or different, or a response is 5xx.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from chaos_parts.batch import BatchFigures, run_batch
from chaos_parts.soak import Soak, SoakFigures, run_soak
from chaos_parts.streams import StreamFigures, run_streams

_SOAKED = ("--ctx-size", "8192", "--cache-mb", "8")
"""A large prefix cache would hide other growth."""
_KILL_EVERY_S, _MEMORY_MIB = 45.0, 8000


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="chaos.py", description=__doc__, formatter_class=form)
    parser.add_argument("--batch", action="store_true", help="kill the whole server during a batch")
    parser.add_argument("--ray", action="store_true", help="kill replicas on Ray Serve")
    parser.add_argument("--readers", action="store_true", help="kill the processes that read texts")
    parser.add_argument("--minutes", type=float, help="duration of mixed traffic")
    parser.add_argument("--models", nargs="+", metavar="[NAME=]SPEC", help="mixed traffic over several")
    parser.add_argument("--model", type=Path, help="GGUF file (default: a tiny one, made now)")
    parser.add_argument("--requests", type=int, default=500, help="streams (default %(default)s)")
    parser.add_argument("--rows", type=int, default=2000, help="rows of the batch (default %(default)s)")
    parser.add_argument("--kills", type=int, help="default 200; 50 with --batch")
    parser.add_argument("--kill-every", type=float, metavar="S", help="for mixed traffic, on average")
    parser.add_argument("--memory", type=int, metavar="MIB", help=f"for --models (default {_MEMORY_MIB})")
    parser.add_argument("--max-growth", type=float, default=0.1, help="share of the memory after warm-up")
    parser.add_argument("--option", action="append", default=[], help="for the server: --ctx-size=32768")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each output (default %(default)s)")
    parser.add_argument("--clients", type=int, help="at once (default 16; 8 of mixed traffic)")
    parser.add_argument("--seed", type=int, default=0, help="of the kills' moments (default %(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave no server behind
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        figures = _run(options, Path(folder))
    for name, value in vars(figures).items():
        for what, count in value.items() if isinstance(value, Counter) else ((name, value),):
            print(f"{what:18} {count:.2f}" if isinstance(count, float) else f"{what:18} {count}")
    print("good" if figures.is_good else "NOT GOOD")
    return 0 if figures.is_good else 1


def _run(options: argparse.Namespace, folder: Path) -> StreamFigures | BatchFigures | SoakFigures:
    model = options.model or folder / "tiny.gguf"
    if not (options.model or options.models):
        # Random weights: the text means nothing, but greedily it is always the same.
        maker = (sys.executable, str(Path(__file__).with_name("make_model.py")))
        subprocess.run([*maker, "--shape", "tiny", "--quant", "f32", "--output", str(model)], check=True)
    if options.models or options.minutes:
        are_several = bool(options.models)
        soak = Soak(
            minutes=options.minutes or 10.0,
            clients=options.clients or 8,
            pause_s=2.0 if are_several else 0.0,
            kill_every_s=options.kill_every or (_KILL_EVERY_S if are_several else None),
            memory_mib=(options.memory or _MEMORY_MIB) if are_several else None,
            max_growth=options.max_growth,
            seed=options.seed,
        )
        own = () if are_several else _SOAKED
        return run_soak(options.models or [f"chaos={model}"], folder, soak, (*own, *options.option))
    kills = options.kills if options.kills is not None else 50 if options.batch else 200
    common = {"kills": kills, "tokens": options.tokens, "seed": options.seed}
    if options.batch:
        return run_batch(model, folder, rows=options.rows, **common)
    streams = run_streams(
        model,
        folder,
        requests=options.requests,
        clients=options.clients or 16,
        over_ray=options.ray,
        readers=options.readers,
        **common,
    )
    return asyncio.run(streams)


if __name__ == "__main__":
    sys.exit(main())
