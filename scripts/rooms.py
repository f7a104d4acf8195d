#!/usr/bin/env python3
"""Print the lines of Python in each room of the package, the tests and the scripts, and the words of the
package's docstrings, next to their budgets."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
PACKAGE = "openai_cpu_server"
BUDGETS = {
    "api": 16_500,
    "structured": 8_700,
    "llama": 7_900,
    "scheduler": 4_200,
    "http": 3_600,
    "prompt": 3_200,
    "replicas": 3_100,
    "engine_client": 2_700,
    "engine": 2_600,
    "cli": 2_500,
    "jobs": 2_400,
    "contract": 2_400,
    "server": 1_800,
    "models": 1_600,
    "model_source": 1_500,
    "config": 1_400,
    "observe": 1_200,
    "reader": 1_200,
    "kernels": 1_100,
    "answers": 700,
    "mcp_servers": 650,
}
"""Lines of a room."""
BUDGET_OF_OTHERS = 1_550
"""Lines of the smaller rooms and of the package's own files."""
WORDS = 600
"""Words of docstrings in 1,000 lines of the package, with those of fields and constants."""
BUDGET_OF_PACKAGE, BUDGET_OF_TESTS, BUDGET_OF_SCRIPTS = 72_500, 53_000, 11_000


def lines(folder: Path) -> int:
    files = (file for file in folder.rglob("*.py") if "node_modules" not in file.parts)
    return sum(file.read_bytes().count(b"\n") for file in files)


def docstring_words(folder: Path) -> int:
    trees = (ast.parse(file.read_bytes()) for file in folder.rglob("*.py"))
    values = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return sum(
        len(value.value.split())
        for value in values
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    table = Table("room", "lines", "budget", "over")
    rows = [(room, lines(ROOT / PACKAGE / room), budget) for room, budget in BUDGETS.items()]
    num_lines = lines(ROOT / PACKAGE)
    rows.append(("others", num_lines - sum(number for _, number, _ in rows), BUDGET_OF_OTHERS))
    rows.append(("the package", num_lines, BUDGET_OF_PACKAGE))
    rows += [("tests", lines(ROOT / "tests"), BUDGET_OF_TESTS)]
    rows += [("scripts", lines(ROOT / "scripts"), BUDGET_OF_SCRIPTS)]
    for room, number, budget in rows:
        table.add_row(room, f"{number:,}", f"{budget:,}", f"{max(0, number - budget):,}")
    table.add_section()
    words = round(1_000 * docstring_words(ROOT / PACKAGE) / num_lines)
    table.add_row("words / 1,000", f"{words:,}", f"{WORDS:,}", f"{max(0, words - WORDS):,}")
    Console(stderr=True).print(table)


if __name__ == "__main__":
    main()
