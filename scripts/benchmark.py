#!/usr/bin/env python3
"""Measures our server beside others, with real HTTP clients, and its goals: pass or miss.

    .venv/bin/python scripts/benchmark.py --set-up-peers   (once: llama-server, a venv for the others)
    .venv/bin/python scripts/benchmark.py [--quick] [--model PATH | --shape 1b,lfm2] [--workloads chat]

Servers are started by the script and measured in interleaved rounds (A B A B ...). Medians count, of ratios
too, which are taken in each round; the spread is (largest - smallest) / median. Report, figures and plots are
written to --output; those of several models to a folder each, with a table of all beside them. Exit code: 0
if everything could be measured or the time of --quick was over, 1 if something failed, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import psutil
from bench import plots
from bench.bench import Bench
from bench.circumstances import circumstances
from bench.contestants import Variant
from bench.failures import described
from bench.llama_sources import SetupFailed
from bench.options import add_options, models_of, settle
from bench.peer_setup import set_up
from bench.peers import KEYS, PeerPaths, PeerUnusable, absent, best_flags, peers
from bench.prose import prompts_for
from bench.report import show, show_goals, show_models, write
from bench.results import Report, WorkloadResult
from bench.time_limit import TimeLimit, TimeUp
from bench.workloads import QUICK, WORKLOADS
from rich.console import Console
from rich.markup import escape

_COMPANY = 0.5
"""Load average before the start from which on others are at work here."""
_QUICK_S = 160
_STOP_S = 10
"""Seconds for servers to end when the time is over; then they are killed."""
_TIME_UP = "not measured: the three minutes of --quick were over"
_QUICK_KEYS = frozenset({"ours", "sequential", "llama-server", "llama-server-best"})
_ALL_KEYS = (*(variant.key for variant in Variant), *KEYS)


def main() -> int:
    arguments = _arguments()
    console = Console()
    if arguments.set_up_peers:
        return _set_up(console)
    limit = TimeLimit(_QUICK_S if arguments.quick else None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave no server behind
    _warn_of_company(os.getloadavg()[0], console)
    models, reports, is_good = models_of(arguments), dict[str, Report](), True
    for label, model in models.items():
        folder = arguments.output if len(models) == 1 else arguments.output / label.replace(" ", "-")
        run = _Run(arguments, model, console, limit)
        reports[label] = run.all_workloads(folder)
        show_goals(reports[label], console)
        is_good &= _draw(reports[label], folder, console) and not reports[label].has_failures
        if len(models) > 1:
            show_models(reports, arguments.output, console)
    console.print(f"written to {arguments.output}", highlight=False)
    return 0 if is_good else 1


class _Run:
    def __init__(
        self, arguments: argparse.Namespace, model: Path, console: Console, time_limit: TimeLimit
    ) -> None:
        self._arguments = arguments
        self._console = console
        self._time_limit = time_limit
        self._say: Callable[[str], None] = lambda line: console.print(
            f"[dim]{escape(line)}[/dim]", highlight=False
        )
        self._model = model
        self._prompts = prompts_for(self._model)
        best: str | None = arguments.llama_server_best
        self._peers = peers(
            self._model, arguments.peer_paths, best_flags(self._model) if best is None else best
        )
        keys: frozenset[str] = arguments.servers
        missing = absent(keys, self._peers)
        if missing:
            self._say(f"{', '.join(missing)}: not here: --set-up-peers")
        contestants = [*(variant.contestant for variant in Variant), *self._peers]
        self.circumstances = circumstances(
            self._model,
            rounds=arguments.rounds,
            is_quick=arguments.quick,
            contestants=[who for who in contestants if who.key in keys],
            absent=missing,
        )

    def all_workloads(self, folder: Path) -> Report:
        load_before = os.getloadavg()
        results: list[WorkloadResult] = []
        for name in self._arguments.workloads:
            results.append(self.workload(name))
            show(results[-1], self._console)
            report = Report(
                circumstances=self.circumstances,
                load_before=load_before,
                load_after=os.getloadavg(),
                results=tuple(results),
            )
            write(report, folder, {})
        return report

    def workload(self, name: str) -> WorkloadResult:
        asked = self._arguments
        bench = Bench(
            model=self._model,
            rounds=asked.rounds,
            is_quick=asked.quick,
            say=self._say,
            peers=self._peers,
            keys=asked.servers,
            by_clock=asked.by_clock,
            prompts=self._prompts,
            once=asked.once,
        )
        self._say(f"{name} ...")
        start = time.perf_counter()
        result = self._measured(name, bench)
        return msgspec.structs.replace(result, uses=tuple(bench.uses), seconds=time.perf_counter() - start)

    def _measured(self, name: str, bench: Bench) -> WorkloadResult:
        try:
            with self._time_limit.ending():
                return WORKLOADS[name](bench)
        except TimeUp:
            _stop_leftovers()
            return WorkloadResult(name=name, sizes="", notes=(_TIME_UP,))
        except Exception as error:
            return WorkloadResult(name=name, sizes="", failure=described(error))


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
    console.print("llama-server, OpenVINO GenAI and llama-cpp-python's servers are ready to be measured")
    return 0


def _draw(report: Report, folder: Path, console: Console) -> bool:
    """Return False if a plot failed; without matplotlib none is due."""
    if not plots.is_possible():
        console.print("no plots: pip install 'openai-cpu-server[bench]'", highlight=False, markup=False)
        return True
    drawn = plots.draw(report, folder)
    for name, why in drawn.failures.items():
        console.print(f"no {name}: {why}", highlight=False, markup=False)
    write(report, folder, drawn.pictures)
    return not drawn.failures


def _warn_of_company(load: float, console: Console) -> None:
    """Compute threads that share cores wait for each other: figures fall by half and more."""
    if load > _COMPANY:
        console.print(f"[yellow]the load average is {load:.1f} already: figures will be off[/yellow]")


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
    parser.add_argument(
        "--output", type=Path, default=_default_output(), metavar="DIR", help="default %(default)s"
    )
    _add_peers(parser.add_argument_group("peers"))
    arguments = parser.parse_args()
    settle(parser, arguments)
    arguments.workloads = arguments.workloads or list(QUICK if arguments.quick else WORKLOADS)
    arguments.servers = arguments.servers or (_QUICK_KEYS if arguments.quick else frozenset(_ALL_KEYS))
    try:
        arguments.peer_paths = PeerPaths.found(arguments.llama_server)
    except PeerUnusable as error:
        parser.error(str(error))
    return arguments


def _add_peers(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--set-up-peers",
        action="store_true",
        help="build llama-server from the sources that llama-cpp-python ships, make virtual environments "
        "for llama-cpp-python's servers and for OpenVINO GenAI, all in the user's cache, and end",
    )
    group.add_argument("--llama-server", type=_file, metavar="PATH", help="default: on PATH, else as set up")
    group.add_argument(
        "--llama-server-best",
        metavar="FLAGS",
        help="what makes llama-server fastest here, for its second column; default: as fits the model",
    )


def _default_output() -> Path:
    return Path("benchmarks") / time.strftime("%Y%m%d-%H%M%S")


def _file(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path.absolute()


def _names(text: str, known: Sequence[str]) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
