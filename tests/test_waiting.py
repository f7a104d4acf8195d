"""Tests wait as tests/waiting.py does: no sleeps, one deadline, no limit on time, no event thrown away."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOMS = sorted({path.relative_to(TESTS).parts[0] for path in TESTS.rglob("*.py")} - {"waiting.py"})

SLEEPERS = {
    "waiting.py": "the helper itself",
    "fake_engine_process.py": "plays an engine that takes time",
}
"""Files that may call `sleep`, without a literal, with the reason."""
ELAPSED: dict[str, str] = {
    "architectures/test_architectures.py": "a step of a real model is under way; tried until one is hit",
    "jobs/support.py": "a database tells nobody of a change: between two reads others must get their turn",
}
"""Files that may call `elapse`, with what only time brings about there."""
TIMED: dict[str, str] = {}
"""Files that may limit a measured time from above, with the reason."""

WAITS = {"fail_after", "move_on_after", "wait", "join", "acquire"}
"""Functions whose last positional argument may be a deadline; `asyncio.wait_for` is not used."""
LONGER = {"gpu": "a driver compiles its shaders at the first start"}
"""Folders with deadlines of their own, with the reason."""
HASTY_S = 1.0
"""A client or a request with less than this is meant to give up: the test is about that."""
OF_THE_SERVER = {
    "chat",
    "respond",
    "Classifier",
    "Examples",
}
"""Calls whose `timeout` is a field of the server's API or options, which the test is about."""
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
READS = {"next", "anext", "recv", "receive", "get", "readline", "read"}


@functools.cache
def trees(room: str) -> list[tuple[str, ast.Module]]:
    """The trees of a folder of tests, or of one file beside the folders, by path."""
    root = TESTS / room
    paths = sorted(root.rglob("*.py")) if root.is_dir() else [root]
    return [(path.relative_to(TESTS).as_posix(), ast.parse(path.read_text("utf-8"))) for path in paths]


def calls(room: str) -> Iterator[tuple[str, ast.Call, str]]:
    for path, tree in trees(room):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield path, node, name_of(node.func)


def name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def owner_of(function: ast.expr) -> str:
    return name_of(function.value) if isinstance(function, ast.Attribute) else ""


@pytest.mark.parametrize("room", ROOMS)
def test_only_the_helper_sleeps(room: str) -> None:
    """A test that lets the event loop go on once says `anyio.lowlevel.checkpoint()`."""
    found = [
        f"{path}:{node.lineno}"
        for path, node, name in calls(room)
        if (name == "sleep" and is_sleep_of_a_module(node) and (path not in SLEEPERS or is_literal(node)))
        or (name in {"elapse", "elapse_async"} and path not in ELAPSED)
    ]
    assert found == []


def is_literal(sleep: ast.Call) -> bool:
    return any(isinstance(value, ast.Constant) for value in sleep.args)


def is_sleep_of_a_module(node: ast.Call) -> bool:
    """An engine can be put to sleep too."""
    return isinstance(node.func, ast.Name) or owner_of(node.func) in {"time", "asyncio", "anyio"}


@pytest.mark.parametrize("room", ROOMS)
def test_deadlines_are_the_one_of_all(room: str) -> None:
    found = [
        f"{path}:{node.lineno}"
        for path, node, name in calls(room)
        if room not in LONGER and name not in OF_THE_SERVER and has_deadline(node, name)
    ]
    assert found == []


def has_deadline(node: ast.Call, name: str) -> bool:
    keywords = [one.value for one in node.keywords if one.arg in {"timeout", "timeout_s", "deadline_s"}]
    positional = node.args[-1:] if name in WAITS else []
    literals = [one.value for one in [*keywords, *positional] if isinstance(one, ast.Constant)]
    return (name == "wait_for" and owner_of(node.func) == "asyncio") or any(
        isinstance(value, int | float) and value >= HASTY_S for value in literals
    )


@pytest.mark.parametrize("room", ROOMS)
def test_no_time_is_limited_from_above(room: str) -> None:
    found = [
        f"{path}:{line}"
        for path, tree in trees(room)
        if path not in TIMED and path != "waiting.py"
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in limited_times(function)
    ]
    assert found == []


def limited_times(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    """The lines that compare a time that has passed, or the clock, with a limit that it must stay below."""
    elapsed = set[str]()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and reads_clock(node.value, elapsed):
            elapsed |= {
                one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)
            }
    for node in ast.walk(function):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
                below = left if isinstance(operator, ast.Lt | ast.LtE) else right
                if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and reads_clock(below, elapsed):
                    yield node.lineno


def reads_clock(value: ast.expr, elapsed: set[str]) -> bool:
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and name_of(node.func) in CLOCKS and not node.args:
            return True
        if isinstance(node, ast.Name) and node.id in elapsed:
            return True
    return False


@pytest.mark.parametrize("room", ROOMS)
def test_no_reader_of_events_discards(room: str) -> None:
    """Loops that read until one event fits lose all others: collect them, then look at what is collected."""
    found = [
        f"{path}:{node.lineno}"
        for path, tree in trees(room)
        for node in ast.walk(tree)
        if isinstance(node, ast.While | ast.For | ast.AsyncFor) and discards(node)
    ]
    assert found == []


def discards(loop: ast.While | ast.For | ast.AsyncFor) -> bool:
    if not all(isinstance(one, ast.Pass | ast.Continue) for one in loop.body):
        return False
    source = loop.test if isinstance(loop, ast.While) else loop.iter
    reads = any(isinstance(one, ast.Call) and name_of(one.func) in READS for one in ast.walk(source))
    return reads and any(isinstance(one, ast.Compare | ast.UnaryOp | ast.BoolOp) for one in ast.walk(source))
