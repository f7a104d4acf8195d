"""The house stays in shape: names, files, classes. See docs/contributing.md."""

from __future__ import annotations

import ast
import functools
from collections import Counter, defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "openai_cpu_server"
MOST_FILES = 437
MOST_METHODS = 25
MOST_LINES = 500
SMALL_LINES, ROOM_LINES = 110, 450
"""A file of fewer lines than the first, which one file of its folder imports, belongs into that file, unless
both together have more than the second."""


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Each module's tree, by its dotted name within the package."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(path.read_text("utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
        if "node_modules" not in path.parts  # of whoever builds the page
    }


def num_lines(module: str) -> int:
    return PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text("utf-8").count("\n")


def classes() -> list[tuple[str, ast.ClassDef]]:
    found = ((module, node) for module, tree in trees().items() for node in ast.walk(tree))
    return [(module, node) for module, node in found if isinstance(node, ast.ClassDef)]


def importers() -> dict[str, set[str]]:
    """The modules that import each module."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE.name):
                inner = (node.module or "").removeprefix(PACKAGE.name).lstrip(".")
                for alias in node.names:
                    names = (f"{inner}.{alias.name}".lstrip("."), inner, f"{inner}.__init__".lstrip("."))
                    found[next(name for name in names if name in trees())].add(module)
    return found


def test_a_public_class_name_is_defined_once() -> None:
    homes = Counter(node.name for _, node in classes() if not node.name.startswith("_"))
    assert {name: count for name, count in homes.items() if count > 1} == {}


def test_no_class_has_too_many_methods() -> None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    counts = {node.name: sum(isinstance(one, kinds) for one in node.body) for _, node in classes()}
    assert {name: count for name, count in counts.items() if count > MOST_METHODS} == {}


def test_no_file_is_too_long() -> None:
    assert {module: num_lines(module) for module in trees() if num_lines(module) > MOST_LINES} == {}


def test_a_small_file_of_one_neighbour_belongs_into_it() -> None:
    small = {}
    for module, users in importers().items():
        if len(users) != 1 or num_lines(module) >= SMALL_LINES:
            continue
        (user,) = users
        is_neighbour = user.rpartition(".")[0] == module.rpartition(".")[0]
        if is_neighbour and num_lines(module) + num_lines(user) <= ROOM_LINES:
            small[module] = user
    assert small == {}


def test_there_are_no_more_files_than_there_were() -> None:
    """Grow by replacing. Who needs a new room raises the number, and says why in the commit."""
    assert len(trees()) <= MOST_FILES


@pytest.mark.parametrize("room", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_a_room_says_who_calls_it_and_what_it_promises(room: str) -> None:
    told = ast.get_docstring(trees()[f"{room}.__init__"]) or ""
    assert len(told.splitlines()) >= 3, f"{room}/__init__.py says too little"
