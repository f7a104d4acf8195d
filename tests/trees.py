"""Syntax trees of package, tests and scripts: each file is parsed and walked once in a process."""

from __future__ import annotations

import ast
import functools
import gc
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)

TESTS = Path(__file__).parent
PACKAGE, SCRIPTS = TESTS.parent / "openai_cpu_server", TESTS.parent / "scripts"
_NO_NODES = {list, str, bytes, int, float, complex, bool, type(None), type(...), ast.Load, ast.Store, ast.Del}


class Source:
    """A file with its nodes by type."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._nodes: defaultdict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        for node in walk(ast.parse(self.text)):
            self._nodes[type(node)].append(node)

    @property
    def tree(self) -> ast.Module:
        return next(self.nodes(ast.Module))

    def nodes(self, *types: type[Node]) -> Iterator[Node]:
        for node_type in types:
            yield from self._nodes[node_type]  # type: ignore[misc]


def walk(root: ast.AST) -> list[ast.AST]:
    """Return the nodes that `ast.walk` yields, in another order and without contexts."""
    found, waiting = list[ast.AST](), [root]
    while waiting:
        node = waiting.pop()
        found.append(node)
        for value in node.__dict__.values():
            if value.__class__ is list:
                waiting += [item for item in value if item.__class__ not in _NO_NODES]
            elif value.__class__ not in _NO_NODES:
                waiting.append(value)
    return found


def _parsed(root: Path) -> dict[Path, Source]:
    """Parse all files, without garbage collection: the trees live as long as the process."""
    gc.disable()
    paths = sorted(path for path in root.rglob("*.py") if "node_modules" not in path.parts)
    sources = {path.relative_to(root): Source(path.read_text("utf-8")) for path in paths}
    gc.freeze()
    gc.enable()
    return sources


@functools.cache
def package() -> dict[str, Source]:
    """Return the modules by their dotted names; a package's `__init__` has the package's name."""
    modules = {}
    for path, source in _parsed(PACKAGE).items():
        parts = path.with_suffix("").parts
        modules[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = source
    return modules


@functools.cache
def files_of_tests() -> dict[str, Source]:
    """Return the files by their paths below `tests`."""
    return {path.as_posix(): source for path, source in _parsed(TESTS).items()}


@functools.cache
def all_files() -> dict[str, Source]:
    """Return the files of the package, the tests and the scripts by their paths."""
    modules = {f"openai_cpu_server: {module}": source for module, source in package().items()}
    tests = {f"tests: {path}": source for path, source in files_of_tests().items()}
    return modules | tests | {f"scripts: {path}": source for path, source in _parsed(SCRIPTS).items()}
