#!/usr/bin/env python3
"""Runs llama-server's own tests against this server, and reports which pass, which differ and why.

.venv/bin/python scripts/llama_server_suite.py [--sources DIR] [--report FILE.xml] [PYTEST'S ARGUMENTS]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.peers import SetupFailed, llama_cpp_in, unpacked_sources
from llama_server_suite.outcomes import Differences, outcomes_in, table

_ROOT = Path(__file__).resolve().parent.parent
_TEST_SECONDS = 120


def main() -> int:
    """Return 1 for an unexpected outcome."""
    parser = argparse.ArgumentParser(prog="llama_server_suite.py", description=__doc__.split("\n")[0])
    parser.add_argument("--sources", type=Path, metavar="DIR", help="unpacked; default: downloaded")
    parser.add_argument("--report", type=Path, metavar="FILE", help="an earlier --junitxml; nothing is run")
    options, arguments = parser.parse_known_args()
    differences = Differences.read()
    with tempfile.TemporaryDirectory(prefix="llama-server-suite-") as folder:
        report = options.report or Path(folder) / "report.xml"
        if options.report is None:
            try:
                say = partial(print, file=sys.stderr)
                sources = options.sources or unpacked_sources(Path(folder), say)
            except SetupFailed as error:
                print(f"llama_server_suite: {error}", file=sys.stderr)
                return 1
            _run(sources, differences, report, arguments)
        outcomes = outcomes_in(report)
    lines, is_as_known = table(outcomes, differences)
    print("\n".join(lines))
    return 0 if is_as_known else 1


def _run(sources: Path, differences: Differences, report: Path, arguments: list[str]) -> None:
    tests = llama_cpp_in(sources.absolute()) / "tools" / "server" / "tests"
    files = [path for path in sorted(tests.glob("unit/test_*.py")) if path.name not in differences.left_out]
    names = [] if any(not one.startswith("-") for one in arguments) else [str(path) for path in files]
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "scripts"), str(tests)])
    options = [
        "-p",
        "llama_server_suite.adapter",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-q",
        "-W",
        "ignore",
    ]
    options += ["-m", "not slow", "--timeout", str(_TEST_SECONDS), "--junitxml", str(report.absolute())]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, *names, *arguments],
        cwd=tests,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
