"""Outcomes of the tests beside their known outcomes."""

from __future__ import annotations

import fnmatch
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FILE = Path(__file__).with_name("differences.toml")
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Differences:
    left_out: Mapping[str, str]
    """Files that need something absent, and its name."""
    causes: Mapping[str, Sequence[str]]

    @classmethod
    def read(cls) -> Differences:
        tables = tomllib.loads(_FILE.read_text("utf-8"))
        return cls(tables["left_out"], tables["differs"])

    def cause_of(self, name: str) -> str | None:
        for cause, patterns in self.causes.items():
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                return cause
        return None


def outcomes_in(report: Path) -> dict[str, str]:
    """Return outcomes by `FILE::TEST`, with pytest's brackets as parentheses."""
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.attrib["classname"].removeprefix("unit.")
        name = case.attrib["name"].replace("[", "(").replace("]", ")")
        kinds = {child.tag for child in case}
        outcome = SKIPPED if "skipped" in kinds else FAILED if kinds & {"failure", "error"} else PASSED
        found[f"{file}::{name}"] = outcome
    return found


def table(outcomes: Mapping[str, str], differences: Differences) -> tuple[list[str], bool]:
    """Return a table of files, one of causes, and unexpected outcomes; and True if there are none."""
    files = {name.split("::")[0] for name in outcomes}
    lines = [f"{'':28}{PASSED:>8}{FAILED:>8}{SKIPPED:>9}"]
    for file in (*sorted(files), ""):
        counts = Counter(outcome for name, outcome in outcomes.items() if name.startswith(file))
        lines.append(f"{file or 'all':28}{counts[PASSED]:8}{counts[FAILED]:8}{counts[SKIPPED]:9}")
    failed = [name for name, outcome in outcomes.items() if outcome == FAILED]
    by_cause = Counter(differences.cause_of(name) for name in failed)
    lines += ["", *(f"{number:4}  {cause}" for cause, number in by_cause.most_common() if cause is not None)]
    new = [f"fails, and should not: {name}" for name in failed if differences.cause_of(name) is None]
    gone = [
        f"passes, and is listed as a difference: {name}"
        for name, outcome in outcomes.items()
        if outcome == PASSED and differences.cause_of(name) is not None
    ]
    return [*lines, *new, *gone], not (new or gone)
