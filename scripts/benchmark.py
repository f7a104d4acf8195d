#!/usr/bin/env python3
"""Measures the server with real HTTP clients, and its goals: pass or miss.

    .venv/bin/python scripts/benchmark.py [--model PATH] [--workloads chat,mixed] [--quick] [--rounds 3]

Servers are started by the script, measured in interleaved rounds (A B A B ...), stopped. Medians count; the
spread is (largest - smallest) / median. Exit code: 0 if everything could be measured, met or not; 1 if not.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
from bench.bench import Bench
from bench.circumstances import circumstances
from bench.http_client import HttpFailed
from bench.load import LoadFailed
from bench.model import default_model
from bench.report import show, show_goals, write
from bench.results import Report, WorkloadResult
from bench.servers import ServerFailed, our_options
from bench.workloads import WORKLOADS
from rich.console import Console

from openai_cpu_server.errors import StartupError
from openai_cpu_server.model_source import resolve_model

_COMPANY = 0.5
"""Load average before the start from which on somebody else is at work here."""


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave no server behind
    model = (arguments.model or default_model()).resolve()
    console = Console()
    load_before = os.getloadavg()
    _warn_of_company(load_before[0], console)
    results: list[WorkloadResult] = []
    known = our_options()
    for name in arguments.workloads:
        bench = Bench(
            model=model,
            rounds=arguments.rounds,
            is_quick=arguments.quick,
            known_options=known,
            say=lambda line: console.print(f"[dim]{line}[/dim]", highlight=False),
        )
        results.append(_run(name, bench))
        show(results[-1], console)
        report = Report(
            circumstances=circumstances(model, rounds=arguments.rounds, is_quick=arguments.quick),
            load_before=load_before,
            load_after=os.getloadavg(),
            results=tuple(results),
        )
        write(report, arguments.output)  # after each: an interrupted run keeps what it has
    show_goals(report, console)
    console.print(f"written to {arguments.output}", highlight=False)
    return 1 if any(result.failure for result in results) else 0


def _warn_of_company(load: float, console: Console) -> None:
    """Compute threads that must share their cores wait for each other: figures fall by half and more."""
    if load > _COMPANY:
        console.print(f"[yellow]the load average is {load:.1f} already: figures will be off[/yellow]")


def _run(name: str, bench: Bench) -> WorkloadResult:
    """A workload that cannot be measured does not take the others along."""
    bench.say(f"{name} ...")
    start = time.perf_counter()
    try:
        result = WORKLOADS[name](bench)
    except (ServerFailed, LoadFailed, HttpFailed) as error:
        result = WorkloadResult(name=name, sizes="", failure=str(error))
    return msgspec.structs.replace(result, uses=tuple(bench.uses), seconds=time.perf_counter() - start)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        type=_gguf,
        metavar="MODEL",
        help="GGUF file, or what else `serve --model` takes, such as demo; "
        "default: a random 1 B q4_k_m, made once",
    )
    parser.add_argument(
        "--workloads",
        type=_names,
        default=list(WORKLOADS),
        metavar="NAME,...",
        help=f"of {', '.join(WORKLOADS)}; default: all",
    )
    parser.add_argument("--rounds", type=_positive, metavar="N", help="default 3, with --quick 1")
    parser.add_argument("--quick", action="store_true", help="smaller sizes: a look, not a result")
    parser.add_argument(
        "--output", type=Path, default=_default_output(), metavar="DIR", help="default %(default)s"
    )
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    return arguments


def _default_output() -> Path:
    return Path("benchmarks") / time.strftime("%Y%m%d-%H%M%S")


def _gguf(text: str) -> Path:
    try:
        return resolve_model(text)
    except StartupError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    return names


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


if __name__ == "__main__":
    sys.exit(main())
