"""Names and words of the package's files. See docs/contributing.md."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "openai_cpu_server"


@functools.cache
def sources() -> dict[str, str]:
    """The text of each module, by its dotted name within the package."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text("utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
        if "node_modules" not in path.parts  # of a machine on which the page was built
    }


@functools.cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Each node of each module, with the module's name."""
    return [(module, node) for module, text in sources().items() for node in ast.walk(ast.parse(text))]


def classes() -> list[ast.ClassDef]:
    return [node for _, node in nodes() if isinstance(node, ast.ClassDef)]


def test_a_public_class_name_is_defined_once() -> None:
    homes = Counter(node.name for node in classes() if not node.name.startswith("_"))
    assert {name: count for name, count in homes.items() if count > 1} == {}


@pytest.mark.parametrize("room", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_a_room_states_its_callers_and_its_promises(room: str) -> None:
    words = ast.get_docstring(ast.parse(sources()[f"{room}.__init__"])) or ""
    assert len(words.splitlines()) >= 3, f"{room}/__init__.py has too short a docstring"


NO_BEGINNING = re.compile(
    r"(as|each|everything|has|how|is|its?|may|meanwhile|nobody|none|nothing|of|raises|so|somebody|such|that|their"
    r"|these|they|those|what|when|where|whether|which|who|whoever|whose)\b(?!-)",
    re.IGNORECASE,
)


def documented() -> Iterator[tuple[str, str]]:
    """Place and text of each docstring, and of each string behind a field or a constant."""
    for module, node in nodes():
        match node:
            case ast.Expr(ast.Constant(str(text)), lineno=line):
                yield f"{module}:{line}", text


def test_a_docstring_begins_with_a_verb_or_a_noun_and_says_more_than_what_is_raised() -> None:
    assert {place: text[:60] for place, text in documented() if NO_BEGINNING.match(text)} == {}
