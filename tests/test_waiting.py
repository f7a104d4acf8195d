"""Tests wait with tests/waiting.py: no sleeps, one deadline, no limit on time, no discarded event."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

import pytest

from tests.trees import Source, files_of_tests, walk

SLEEPERS = {"waiting.py": "the helper itself", "fake_engine_process.py": "plays an engine that takes time"}
"""Files that may call `sleep`, without a literal, with the reason."""
ELAPSED: dict[str, str] = {
    "architectures/test_architectures.py": "a step of a real model is under way; tried until one is hit",
    "jobs/support.py": "a database does not announce changes: other tasks must run between two reads",
}
"""Files that may call `elapse`, with the state that only time brings about."""
TIMED: dict[str, str] = {}
"""Files that may limit a measured time from above, with the reason."""

WAITS = {"fail_after", "move_on_after", "wait", "join", "acquire"}
"""Functions whose last positional argument may be a deadline; `asyncio.wait_for` is not used."""
LONGER = {"gpu": "a driver compiles its shaders at the first start"}
"""Folders with deadlines of their own, with the reason."""
HASTY_S = 1.0
"""A client or a request with less than this is meant to time out: its test is about the timeout."""
OF_THE_SERVER = {"chat", "respond", "Classifier", "Examples"}
"""Calls whose `timeout` is a field of the server's API or options, which the test is about."""
HIDDEN = {
    "httpx": ({"get", "post", "put", "delete", "request", "stream", "Client", "AsyncClient"}, "timeout"),
    "websockets.sync.client": ({"connect"}, "open_timeout"),
}
"""Calls by owner that give up after seconds without this argument. A `transport` uses no network."""
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
_READS_CLOCK = re.compile(rf"\b({'|'.join(sorted(CLOCKS))})\(\)")
READS = {"next", "anext", "recv", "receive", "get", "readline", "read"}


def name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def owner_of(function: ast.expr) -> str:
    return name_of(function.value) if isinstance(function, ast.Attribute) else ""


def sleeps(path: str, source: Source) -> Iterator[int]:
    """Find `sleep`. A test that lets the event loop run once calls `anyio.lowlevel.checkpoint()`."""
    for node in source.nodes(ast.Call):
        name, owner = name_of(node.func), owner_of(node.func)
        # `sleep` is a method of engines too.
        is_sleep = name == "sleep" and (
            isinstance(node.func, ast.Name) or owner in {"time", "asyncio", "anyio"}
        )
        is_literal = any(isinstance(value, ast.Constant) for value in node.args)
        if is_sleep and (path not in SLEEPERS or is_literal):
            yield node.lineno
        if name in {"elapse", "elapse_async"} and path not in {*ELAPSED, "waiting.py"}:
            yield node.lineno


def other_deadlines(path: str, source: Source) -> Iterator[int]:
    for node in source.nodes(ast.Call):
        name = name_of(node.func)
        arguments = {keyword.arg: keyword.value for keyword in node.keywords}
        keywords = [arguments[key] for key in ("timeout", "timeout_s", "deadline_s") if key in arguments]
        positional = node.args[-1:] if name in WAITS else []
        limits = [limit.value for limit in [*keywords, *positional] if isinstance(limit, ast.Constant)]
        is_long = any(isinstance(value, int | float) and value >= HASTY_S for value in limits)
        hidden, argument = HIDDEN.get(ast.unparse(node.func).rpartition(".")[0], ((), ""))
        is_hidden = name in hidden and not {argument, "transport"} & arguments.keys()
        is_other = is_long or is_hidden or (name == "wait_for" and owner_of(node.func) == "asyncio")
        if is_other and name not in OF_THE_SERVER and path.split("/")[0] not in LONGER:
            yield node.lineno


def limited_times(path: str, source: Source) -> Iterator[int]:
    """Find comparisons of an elapsed time, or of the clock, with an upper bound."""
    if path in TIMED or path == "waiting.py" or not _READS_CLOCK.search(source.text):
        return
    for function in source.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        nodes, elapsed = list(walk(function)), set[str]()
        for node in nodes:
            if isinstance(node, ast.Assign) and reads_clock(node.value, elapsed):
                names = (name for target in node.targets for name in walk(target))
                elapsed |= {name.id for name in names if isinstance(name, ast.Name)}
        for node in nodes:
            if isinstance(node, ast.Compare) and is_limit(node, elapsed):
                yield node.lineno


def is_limit(node: ast.Compare, elapsed: set[str]) -> bool:
    operands = [node.left, *node.comparators]
    return any(
        reads_clock(left if isinstance(operator, ast.Lt | ast.LtE) else right, elapsed)
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False)
        if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    )


def reads_clock(value: ast.expr, elapsed: set[str]) -> bool:
    for node in walk(value):
        if isinstance(node, ast.Call) and name_of(node.func) in CLOCKS and not node.args:
            return True
        if isinstance(node, ast.Name) and node.id in elapsed:
            return True
    return False


def discards(path: str, source: Source) -> Iterator[int]:
    """Find loops that read until one event fits and lose the others. Collect events, then search them."""
    for loop in source.nodes(ast.While, ast.For, ast.AsyncFor):
        if all(isinstance(statement, ast.Pass | ast.Continue) for statement in loop.body):
            nodes = [*walk(loop.test if isinstance(loop, ast.While) else loop.iter)]
            reads = any(isinstance(node, ast.Call) and name_of(node.func) in READS for node in nodes)
            if reads and any(isinstance(node, ast.Compare | ast.UnaryOp | ast.BoolOp) for node in nodes):
                yield loop.lineno


def stops(path: str, source: Source) -> Iterator[int]:
    """Find other uses of SIGSTOP than tests/gates.py, which waits because a process runs on for a moment."""
    for node in source.nodes(ast.Attribute):
        if node.attr in {"suspend", "SIGSTOP"} and path != "gates.py":
            yield node.lineno


def page_functions(path: str, source: Source) -> Iterator[int]:
    """Find `wait_for_function`: the page's security policy forbids the script that playwright evaluates at
    each look but the first."""
    for node in source.nodes(ast.Attribute):
        if node.attr == "wait_for_function":
            yield node.lineno


RULES: tuple[Callable[[str, Source], Iterator[int]], ...] = (
    sleeps,
    other_deadlines,
    limited_times,
    discards,
    stops,
    page_functions,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_file_breaks_a_rule_of_waiting(rule: Callable[[str, Source], Iterator[int]]) -> None:
    assert [
        f"{path}:{line}" for path, source in files_of_tests().items() for line in rule(path, source)
    ] == []
