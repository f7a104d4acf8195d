#!/usr/bin/env python3
"""Measures our server beside others, with real HTTP clients, and its goals: pass or miss.

    .venv/bin/python scripts/benchmark.py --set-up-peers   (once: llama-server, OpenVINO, vLLM)
    .venv/bin/python scripts/benchmark.py [--quick] [--model PATH | --shape 1b,lfm2] [--workloads chat]

Servers are started by the script and measured in interleaved rounds (A B A B ...). Medians count, of ratios
too, which are taken in each round; the spread is (largest - smallest) / median. Report and figures are
written to --output; those of several models to a folder each, with a table of all beside them. Exit code: 0
if everything could be measured or the time of --quick was over, 1 if something failed, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import msgspec
import psutil
from bench.bench import Bench
from bench.models import add_options, models_of, settle
from bench.peers import KEYS, PeerPaths, PeerUnusable, SetupFailed, best_flags, peers, set_up
from bench.prose import prompts_for
from bench.report import circumstances, show, show_goals, show_models, write
from bench.results import Report, WorkloadResult
from bench.servers import Variant
from bench.traffic import described
from bench.workloads import QUICK, WORKLOADS
from rich.console import Console

_COMPANY = 0.5
"""Load average before the start that shows others at work."""
_QUICK_S = 160
_STOP_S = 10
"""Seconds for servers to end in time; then they are killed."""
_TIME_UP = "not measured: the three minutes of --quick were over"
_QUICK_KEYS = frozenset({"ours", "sequential", "llama-server", "llama-server-best"})
_ALL_KEYS = (*(variant.key for variant in Variant), *KEYS)


class TimeUp(KeyboardInterrupt):
    """KeyboardInterrupt, because event loops let no other kind through."""


def main() -> int:
    arguments = _arguments()
    console = Console()
    if arguments.set_up_peers:
        return _set_up(console)
    deadline_s = time.monotonic() + _QUICK_S if arguments.quick else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave no server behind
    if (load := os.getloadavg()[0]) > _COMPANY:
        # Compute threads that share cores wait for each other: figures fall by half and more.
        console.print(f"[yellow]the load average is {load:.1f} already: figures will be off[/yellow]")
    models, reports = models_of(arguments), dict[str, Report]()
    for label, model in models.items():
        folder = arguments.output if len(models) == 1 else arguments.output / label.replace(" ", "-")
        reports[label] = _measured(arguments, model, folder, console, deadline_s)
        show_goals(reports[label], console)
        if len(models) > 1:
            show_models(reports, arguments.output, console)
    console.print(f"written to {arguments.output}", highlight=False)
    return 1 if any(report.has_failures for report in reports.values()) else 0


def _measured(
    arguments: argparse.Namespace, model: Path, folder: Path, console: Console, deadline_s: float | None
) -> Report:
    def say(line: str) -> None:
        console.print(line, style="dim", markup=False, highlight=False)

    best: str | None = arguments.llama_server_best
    rivals = list(peers(arguments.peer_paths, model, best_flags(model) if best is None else best))
    everybody = [*(variant.contestant for variant in Variant), *rivals]
    keys: frozenset[str] = arguments.servers
    missing = [key for key in KEYS if key in keys and key not in {who.key for who in rivals}]
    if missing:
        say(f"{', '.join(missing)}: not here: --set-up-peers (vLLM: dense models only)")
    bench = Bench(
        model=model,
        rounds=arguments.rounds,
        is_quick=arguments.quick,
        say=say,
        peers=rivals,
        keys=keys,
        by_clock=arguments.by_clock,
        prompts=prompts_for(model),
        once=arguments.once,
    )
    report = Report(
        circumstances=circumstances(
            model, arguments.rounds, arguments.quick, [who for who in everybody if who.key in keys], missing
        ),
        load_before=os.getloadavg(),
        load_after=os.getloadavg(),
        results=(),
    )
    for name in arguments.workloads:
        say(f"{name} ...")
        start_s = time.perf_counter()
        fresh = replace(bench, uses=[])
        result = _result(name, fresh, deadline_s)
        result = msgspec.structs.replace(
            result, uses=tuple(fresh.uses), seconds=time.perf_counter() - start_s
        )
        show(result, console)
        report = msgspec.structs.replace(
            report, load_after=os.getloadavg(), results=(*report.results, result)
        )
        write(report, folder)
    return report


def _result(name: str, bench: Bench, deadline_s: float | None) -> WorkloadResult:
    """Let the alarm end the workload, but no report that is being written."""
    left_s = None if deadline_s is None else deadline_s - time.monotonic()
    try:
        if left_s is not None:
            signal.signal(signal.SIGALRM, _time_up)
            signal.setitimer(signal.ITIMER_REAL, max(left_s, 0.001))
        return WORKLOADS[name](bench)
    except TimeUp:
        _stop_leftovers()
        return WorkloadResult(name=name, sizes="", notes=(_TIME_UP,))
    except Exception as error:
        return WorkloadResult(name=name, sizes="", failure=described(error))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _time_up(*_: object) -> NoReturn:
    raise TimeUp


def _stop_leftovers() -> None:
    children = psutil.Process().children(recursive=True)
    for child in children:
        child.terminate()
    _, alive = psutil.wait_procs(children, timeout=_STOP_S)
    for child in alive:
        child.kill()
    psutil.wait_procs(alive)


def _set_up(console: Console) -> int:
    try:
        set_up(lambda line: console.print(line, highlight=False))
    except SetupFailed as error:
        console.print(f"[red]{error}[/red]", highlight=False)
        return 1
    console.print("llama-server and OpenVINO GenAI are ready to be measured")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, several=True)
    parser.add_argument(
        "--workloads",
        type=lambda text: _names(text, tuple(WORKLOADS)),
        metavar="NAME,...",
        help=f"of {', '.join(WORKLOADS)}; default: all, with --quick "
        f"without {', '.join(name for name in WORKLOADS if name not in QUICK)}",
    )
    parser.add_argument(
        "--servers",
        type=lambda text: frozenset(_names(text, _ALL_KEYS)),
        metavar="NAME,...",
        help=f"of {', '.join(_ALL_KEYS)}; default: all that are here, with --quick "
        f"{', '.join(sorted(_QUICK_KEYS))}. Workloads pick those of them that say something there",
    )
    parser.add_argument(
        "--once",
        type=lambda text: frozenset(_names(text, _ALL_KEYS)),
        default=frozenset(),
        metavar="NAME,...",
        help="servers to measure in the first round only, such as one that takes long and decides nothing",
    )
    parser.add_argument(
        "--by-clock",
        action="store_true",
        help="interactive requests of mixed come at equal intervals, not at random (Poisson)",
    )
    default = Path("benchmarks") / time.strftime("%Y%m%d-%H%M%S")
    parser.add_argument("--output", type=Path, default=default, metavar="DIR", help="default %(default)s")
    group = parser.add_argument_group("peers")
    group.add_argument(
        "--set-up-peers",
        action="store_true",
        help="build llama-server from the sources that llama-cpp-python ships, make a virtual environment "
        "for OpenVINO GenAI, both in the user's cache, and end",
    )
    group.add_argument("--llama-server", type=_file, metavar="PATH", help="default: on PATH, else as set up")
    group.add_argument(
        "--llama-server-best",
        metavar="FLAGS",
        help="what makes llama-server fastest here, for its second column; default: as fits the model",
    )
    arguments = parser.parse_args()
    settle(parser, arguments)
    arguments.workloads = arguments.workloads or list(QUICK if arguments.quick else WORKLOADS)
    arguments.servers = arguments.servers or (_QUICK_KEYS if arguments.quick else frozenset(_ALL_KEYS))
    try:
        arguments.peer_paths = PeerPaths.found(arguments.llama_server)
    except PeerUnusable as error:
        parser.error(str(error))
    return arguments


def _file(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path.absolute()


def _names(text: str, options: Sequence[str]) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in options]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(options)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
