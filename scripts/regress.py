#!/usr/bin/env python3
"""Measures features and costs that only this server has, to find regressions.

.venv/bin/python scripts/regress.py NAME [--help] [OPTIONS]
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.bench import Bench
from bench.models import add_options, models_of, settle
from bench.report import show
from bench.traffic import Failed
from regressions import COMPUTE_HERE, MEASUREMENTS
from rich.console import Console

from openai_cpu_server.config.folders import HUGE_PAGES
from openai_cpu_server.kernels.library import put_in_front


def main() -> int:
    names = "\n".join(f"    {name:14} {what}" for name, what in MEASUREMENTS.items())
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=f"{__doc__}\n{names}", formatter_class=form)
    parser.add_argument("name", choices=MEASUREMENTS, metavar="NAME")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="OPTIONS")
    name, arguments = vars(parser.parse_args()).values()
    if name in COMPUTE_HERE:
        put_in_front()  # before llama.cpp is loaded: the linker takes what came first
    module = importlib.import_module(f"regressions.{name.replace('-', '_')}")
    parser = argparse.ArgumentParser(
        prog=f"regress.py {name}", description=module.__doc__, formatter_class=form
    )
    is_workload = hasattr(module, "workload")
    (add_options if is_workload else module.add_options)(parser)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave no server behind
    try:
        if is_workload:
            settle(parser, options)
            console = Console()
            show(module.workload(_bench(options, console)), console)
            return 0
        if name in COMPUTE_HERE and not HUGE_PAGES.keys() & os.environ.keys():
            os.execve(sys.executable, sys.orig_argv, os.environ | HUGE_PAGES)  # glibc reads it at the start
        return module.run(options) or 0
    except Failed as error:
        print(error, file=sys.stderr)
        return 1


def _bench(options: argparse.Namespace, console: Console) -> Bench:
    from bench.prose import prompts_for  # it loads llama.cpp

    *_, model = models_of(options).values()
    return Bench(
        model=model,
        rounds=options.rounds,
        is_quick=options.quick,
        say=lambda line: console.print(line, style="dim", markup=False, highlight=False),
        prompts=prompts_for(model),
    )


if __name__ == "__main__":
    sys.exit(main())
