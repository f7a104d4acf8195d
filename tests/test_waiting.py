"""Tests wait with tests/waiting.py: no sleeps, one deadline, no limit on time, no discarded event."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.trees import Source, files_of_tests, walk

SLEEPERS = {"waiting.py": "the helper itself", "fake_engine_process.py": "plays an engine that takes time"}
"""Files that may call `sleep`, without a literal, with the reason."""
ELAPSED: dict[str, str] = {
    "architectures/test_architectures.py": "a step of a real model is under way; tried until one is hit",
    "jobs/support.py": "a database does not announce changes: other tasks must run between two reads",
}
"""Files that may call `elapse`, with the state that only time brings about."""
TIMED = {"loop_watch.py": "CPU time of the loop's thread, which other processes do not lengthen"}
"""Files that may limit a measured time from above, with the reason."""

WAITS = {
    *(
        "acquire",
        "communicate",
        "fail_after",
        "join",
        "move_on_after",
        "poll",
        "result",
        "settimeout",
        "wait",
    ),
    "timeout",
}
"""Functions whose last positional argument may be a deadline; `asyncio.wait_for` is not used."""
METHODS = {"join", "poll", "result"}
"""Some of them, which count only as methods."""
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
MARK_S = 300
"""Limit of pytest on each test: a mark may only extend it."""
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
CLOCKS |= {f"{clock}_ns" for clock in CLOCKS}
_READS_CLOCK = re.compile(rf"\b({'|'.join(sorted(CLOCKS))})\(\)|\.elapsed\b")
READS = {"next", "anext", "recv", "receive", "get", "readline", "read"}


def name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def owner_of(function: ast.expr) -> str:
    return name_of(function.value) if isinstance(function, ast.Attribute) else ""


def sleeps(path: str, source: Source) -> Iterator[int]:
    """Find `sleep`. A test that lets the event loop run once calls `anyio.lowlevel.checkpoint()`."""
    for imported in source.nodes(ast.ImportFrom):
        if any(name.name == "sleep" for name in imported.names) and path not in SLEEPERS:
            yield imported.lineno
    for statement in source.nodes(ast.Expr):
        if not isinstance(call := statement.value, ast.Call) or name_of(call.func) != "wait":
            continue
        if any(isinstance(value, ast.Constant) and value.value is not None for value in call.args):
            yield statement.lineno
    for node in source.nodes(ast.Call):
        name, owner = name_of(node.func), owner_of(node.func)
        # `sleep` is a method of engines too.
        is_sleep = name == "wait_for_timeout" or (
            name == "sleep"
            and (isinstance(node.func, ast.Name) or owner in {"time", "asyncio", "anyio", "trio"})
        )
        is_literal = any(isinstance(value, ast.Constant) for value in node.args)
        if is_sleep and (path not in SLEEPERS or is_literal):
            yield node.lineno
        if name in {"elapse", "elapse_async"} and path not in {*ELAPSED, "waiting.py"}:
            yield node.lineno


def other_deadlines(path: str, source: Source) -> Iterator[int]:
    constants = {
        target.id: node.value
        for node in source.tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    owners = {
        name.asname or name.name: node.module
        for node in source.nodes(ast.ImportFrom)
        for name in node.names
        if node.module in HIDDEN
    }
    for node in source.nodes(ast.Call):
        name, owner = name_of(node.func), owner_of(node.func)
        arguments = {keyword.arg: keyword.value for keyword in node.keywords}
        keywords = [arguments[key] for key in ("timeout", "timeout_s", "deadline_s") if key in arguments]
        is_wait = name in WAITS and (isinstance(node.func, ast.Attribute) or name not in METHODS)
        positional = node.args[-1:] if is_wait else []
        limits = [seconds(limit, constants) for limit in [*keywords, *positional]]
        if owner == "mark":
            is_long = any(limit and limit < MARK_S for limit in limits)
        else:
            is_long = any(limit is not None and limit >= HASTY_S for limit in limits)
        dotted = ast.unparse(node.func)
        module = owners.get(dotted) or dotted.rpartition(".")[0]
        hidden, argument = HIDDEN.get(module, ((), ""))
        is_hidden = name in hidden and not {argument, "transport"} & arguments.keys()
        is_other = is_long or is_hidden or (name == "wait_for" and owner == "asyncio")
        if is_other and name not in OF_THE_SERVER and path.split("/")[0] not in LONGER:
            yield node.lineno


def seconds(limit: ast.expr, constants: dict[str, ast.expr]) -> float | None:
    """Return the number that the expression is in this file, or None."""
    if isinstance(limit, ast.Constant):
        return limit.value if isinstance(limit.value, int | float) else None
    if isinstance(limit, ast.BinOp):
        parts = [seconds(limit.left, constants), seconds(limit.right, constants)]
        return None if None in parts else max(part for part in parts if part is not None)
    if isinstance(limit, ast.Name) and limit.id in constants:
        return seconds(constants[limit.id], {})
    return None


def limited_times(path: str, source: Source) -> Iterator[int]:
    """Find comparisons of an elapsed time, or of the clock, with an upper bound."""
    if path in TIMED or path == "waiting.py" or not _READS_CLOCK.search(source.text):
        return
    functions = [*source.nodes(ast.FunctionDef, ast.AsyncFunctionDef)]
    timers = {name for function in functions for name in [function.name] if returns_time(function)}
    for function in functions:
        nodes = [*walk(function)]
        elapsed = elapsed_names(nodes) | timers
        failures = {
            id(part)
            for node in nodes
            if isinstance(node, ast.If) and any(fails(statement) for statement in node.body)
            for part in walk(node.test)
        }
        for node in nodes:
            if isinstance(node, ast.Compare) and is_limit(node, elapsed, is_failure=id(node) in failures):
                yield node.lineno


def returns_time(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    nodes = [*walk(function)]
    elapsed = elapsed_names(nodes)
    return any(
        isinstance(node, ast.Return)
        and isinstance(node.value, ast.BinOp)
        and reads_clock(node.value, elapsed)
        for node in nodes
    )


def elapsed_names(nodes: Sequence[ast.AST]) -> set[str]:
    """Names to which the clock, or a time that has passed, is assigned."""
    elapsed = set[str]()
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value is not None and reads_clock(node.value, elapsed):
                names = (name for target in targets for name in walk(target))
                elapsed |= {name.id for name in names if isinstance(name, ast.Name)}
        elif isinstance(node, ast.Call) and name_of(node.func) == "append" and owner_of(node.func):
            elapsed |= {owner_of(node.func) for value in node.args if reads_clock(value, elapsed)}
    return elapsed


def fails(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Raise):
        return True
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and name_of(statement.value.func) == "fail"
    )


def is_limit(node: ast.Compare, elapsed: set[str], *, is_failure: bool) -> bool:
    """`is_failure`: the test fails if the comparison is true, so that a lower bound is an upper one."""
    below = (ast.Gt, ast.GtE) if is_failure else (ast.Lt, ast.LtE)
    operands = [node.left, *node.comparators]
    return any(
        reads_clock(left if isinstance(operator, below) else right, elapsed)
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False)
        if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    )


def reads_clock(value: ast.expr, elapsed: set[str]) -> bool:
    for node in walk(value):
        if isinstance(node, ast.Call) and name_of(node.func) in CLOCKS and not node.args:
            return True
        if isinstance(node, ast.Attribute) and node.attr == "elapsed":
            return True
        if isinstance(node, ast.Name) and node.id in elapsed:
            return True
    return False


def discards(path: str, source: Source) -> Iterator[int]:
    """Find loops that read until one event fits and lose the others. Collect events, then search them."""
    for loop in source.nodes(ast.While, ast.For, ast.AsyncFor):
        head = [*walk(loop.test if isinstance(loop, ast.While) else loop.iter)]
        body = [part for statement in loop.body for part in walk(statement)]
        leaves = any(isinstance(node, ast.Return | ast.Break) for node in body)
        if all(isinstance(statement, ast.Pass | ast.Continue) for statement in loop.body):
            is_search = reads(head) and any(isinstance(node, ast.UnaryOp | ast.Compare) for node in head)
        elif isinstance(loop, ast.While):
            is_search = reads(body) and selects([*head, *(body if leaves else [])])
        else:
            is_search = isinstance(loop, ast.AsyncFor) and leaves and selects(body)
        if is_search and not any(keeps(node) for node in body):
            yield loop.lineno


def reads(nodes: Sequence[ast.AST]) -> bool:
    """`get` with arguments is a dictionary's."""
    calls = (node for node in nodes if isinstance(node, ast.Call) and name_of(node.func) in READS)
    return any(name_of(call.func) in {"next", "anext"} or not call.args for call in calls)


def selects(nodes: Sequence[ast.AST]) -> bool:
    """Tell whether one of the nodes compares, other than with None."""
    comparisons = (node for node in nodes if isinstance(node, ast.Compare))
    return any(not isinstance(node.ops[0], ast.Is | ast.IsNot) for node in comparisons)


def keeps(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return name_of(node.func) in {"add", "append", "extend", "put", "send", "sendall", "write"}
    return isinstance(node, ast.Yield | ast.YieldFrom | ast.AugAssign)


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


BREACHES = {
    "sleeps": [
        "time.sleep(3)",
        "from time import sleep as pause",
        "trio.sleep(3)",
        "threading.Event().wait(0.9)",
        "page.wait_for_timeout(3000)",
    ],
    "other_deadlines": [
        "q.get(timeout=5)",
        "q.get(timeout=2 * 5)",
        "LIMIT_S = 5\nq.get(timeout=LIMIT_S)",
        "sock.settimeout(30)",
        "connection.poll(5)",
        "future.result(5)",
        "process.communicate(None, 5)",
        "async def test():\n    async with asyncio.timeout(5):\n        pass",
        "@pytest.mark.timeout(5)\ndef test():\n    pass",
        "httpx.get('x')",
        "from httpx import get\nget('x')",
        "asyncio.wait_for(event, DEADLINE_S)",
    ],
    "limited_times": [
        "def test():\n    s = time.monotonic()\n    assert time.monotonic() - s < 5",
        "def test():\n    s: float = time.monotonic_ns()\n    t = time.monotonic_ns() - s\n    assert t < 5",
        "def test():\n    s = time.monotonic()\n    assert (t := time.monotonic() - s) and 5 > t",
        "def test():\n    t = []\n    t.append(time.monotonic() - s)\n    assert max(t) < 5",
        "def test():\n    if time.monotonic() - s > 5:\n        pytest.fail('slow')",
        "def test():\n    assert get(url).elapsed.total_seconds() < 5  # elapsed",
        "def took():\n    s = time.monotonic()\n    return time.monotonic() - s\n"
        "def test():\n    assert took() < 5",
    ],
    "discards": [
        "while next(events) != 1:\n    pass",
        "e = next(events)\nwhile e.kind != 'x':\n    e = next(events)",
        "async def test():\n    async for e in events:\n        if e.kind == 'x':\n            return e",
        "while True:\n    e = next(events)\n    if e.kind == 'x':\n        break",
    ],
    "stops": ["os.kill(pid, signal.SIGSTOP)", "process.suspend()"],
    "page_functions": ["page.wait_for_function('x')"],
}
PERMITTED = """
def test():
    start_s = time.monotonic()
    process.wait(timeout=DEADLINE_S)
    client.get("x", timeout=0.5)
    assert time.monotonic() - start_s >= 0.5
    collected = []
    while collected[-1:] != ["end"]:
        collected.append(next(events))
    " ".join(["a"] * 100)
"""


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in BREACHES.items() for text in texts]
)
def test_a_rule_finds_each_spelling_of_its_breach(name: str, text: str) -> None:
    (rule,) = (rule for rule in RULES if rule.__name__ == name)
    assert [*rule("x/test_x.py", Source(text))] != []


def test_no_rule_objects_to_the_ways_of_tests_waiting() -> None:
    source = Source(PERMITTED)
    assert [rule.__name__ for rule in RULES if [*rule("x/test_x.py", source)]] == []
