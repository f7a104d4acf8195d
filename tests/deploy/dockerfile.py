"""Reads a Dockerfile: its stages, and the steps of each with their variables filled in."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


@dataclass(frozen=True)
class Step:
    """One instruction, as written but for joined lines."""

    name: str
    value: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.value)

    @property
    def command(self) -> list[str]:
        """What runs: the list of the exec form, or a shell with the rest."""
        if self.value.startswith("["):
            return [str(word) for word in json.loads(self.value)]
        return ["/bin/sh", "-c", self.value]


@dataclass
class Stage:
    base: str
    name: str
    steps: list[Step] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        return [step.value for step in self.steps if step.name == name]

    def last(self, name: str) -> Step:
        return [step for step in self.steps if step.name == name][-1]


def stages(path: Path = DOCKERFILE) -> list[Stage]:
    """The stages in their order. What stands before the first is only for the names of base images."""
    found: list[Stage] = []
    for step in _steps(path.read_text()):
        if step.name == "FROM":
            base, _, name = step.value.partition(" AS ")
            found.append(Stage(base, name or str(len(found))))
        elif found:
            found[-1].steps.append(step)
    return found


def filled_in(value: str, variables: Mapping[str, str]) -> str:
    """With variables as the builder fills them in, in all instructions but RUN and the like."""
    return _VARIABLE.sub(lambda match: variables.get(match[1], ""), value)


def assignments(step: Step) -> Iterator[tuple[str, str]]:
    """Of ENV (several), or of ARG (one, that may have no default)."""
    for word in step.words:
        name, _, value = word.partition("=")
        yield name, value


def _steps(text: str) -> Iterator[Step]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for instruction in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if instruction.strip():
            name, _, value = instruction.strip().partition(" ")
            yield Step(name.upper(), value.strip())
