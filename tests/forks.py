"""`--forks N`: pytest imports and collects all tests once, and N forks of it take them, file by file.

Each worker of pytest-xdist does so for itself; from a fresh clone, which has nothing compiled, that takes
each of them 14 seconds. No process deals out the work: the indices of the files are in a pipe, in the order
in which the files are to begin, and each fork reads its next index there.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn

import pytest

from openai_cpu_server.child_processes.signals import die_with_parent

_TOGETHER = {
    "tests/page/": "one browser",
    **dict.fromkeys(
        ["tests/e2e/test_embedding_clients.py", "tests/e2e/test_frameworks.py"],
        "one import of frameworks that take seconds",
    ),
    **dict.fromkeys(
        [f"tests/test_{name}.py" for name in ("fences", "house", "patterns", "waiting")],
        "the package's and the tests' syntax trees",
    ),
}  # prefix of file names -> the expensive thing that these files share; one fork takes them all
_INDEX_BYTES = 2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run the tests in N forks")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    options = session.config.option
    if options.forks < 2 or options.collectonly or session.testsfailed:
        return None  # pytest runs the tests itself
    groups: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        groups.setdefault(_group(item), []).append(item)
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    forks = _Forks(session, list(groups.values()))
    try:
        forks.run(options.forks)
    finally:
        forks.end()
    return True


def _group(item: pytest.Item) -> str:
    file = item.nodeid.partition("::")[0]
    return next((shared for begin, shared in _TOGETHER.items() if file.startswith(begin)), file)


class _Forks:
    """The collecting process's side: it passes the events of its forks on to pytest's own hooks."""

    def __init__(self, session: pytest.Session, groups: Sequence[Sequence[pytest.Item]]) -> None:
        self._session, self._groups = session, groups
        self._indices, write_end = os.pipe()
        os.write(write_end, b"".join(n.to_bytes(_INDEX_BYTES, "big") for n in range(len(groups))))
        os.close(write_end)
        self._running: dict[Connection, int] = {}  # receiving end of each fork's pipe -> its process id
        self._current_tests: dict[int, tuple[str, Any]] = {}  # process id -> the test that it has not ended

    def run(self, count: int) -> None:
        for _ in range(count):
            self._fork()
        while self._running:
            for receiver in wait(list(self._running)):
                self._receive(receiver)
            if self._session.shouldfail:
                raise self._session.Failed(self._session.shouldfail)
            if self._session.shouldstop:
                raise self._session.Interrupted(self._session.shouldstop)

    def end(self) -> None:
        """Interrupt the forks that still run."""
        for pid in self._running.values():
            os.kill(pid, signal.SIGINT)
        for receiver, pid in self._running.items():
            receiver.close()
            os.waitpid(pid, 0)
        os.close(self._indices)

    def _fork(self) -> None:
        receiver, sender = Pipe(duplex=False)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            receiver.close()
            _run_fork(self._session, self._groups, self._indices, sender)
        sender.close()
        self._running[receiver] = pid

    def _receive(self, receiver: Connection) -> None:
        pid, hook = self._running[receiver], self._session.config.hook
        try:
            name, arguments = receiver.recv()
        except EOFError:
            self._reap(receiver)
            return
        if name == "pytest_runtest_logstart":
            self._current_tests[pid] = arguments["nodeid"], arguments["location"]
        elif name == "pytest_runtest_logfinish":
            del self._current_tests[pid]
        elif name == "pytest_runtest_logreport":
            data = arguments["report"]
            report = hook.pytest_report_from_serializable(config=self._session.config, data=data)
            arguments = {"report": report}
        if name == "pytest_warning_recorded":
            hook.pytest_warning_recorded.call_historic(kwargs=arguments)
        else:
            getattr(hook, name)(**arguments)

    def _reap(self, receiver: Connection) -> None:
        """Report a fork's death as a failure of its current test, and fork again for the other files."""
        pid = self._running.pop(receiver)
        receiver.close()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 0 and pid not in self._current_tests:
            return
        nodeid, location = self._current_tests.pop(pid, ("the end of a fork", ("", None, "")))
        message = f"the process of the tests ended with {code}; the rest of this file has not run"
        report = pytest.TestReport(nodeid, location, {}, "failed", message, "call")  # type: ignore[arg-type]
        self._session.config.hook.pytest_runtest_logreport(report=report)
        self._fork()


class _Reporter:
    """A fork's plugin: it sends the fork's reports to the collecting process."""

    def __init__(self, config: pytest.Config, sender: Connection) -> None:
        self._config, self._sender = config, sender
        self._has_begun = False

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self._has_begun = True
        self._sender.send(("pytest_runtest_logstart", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self._sender.send(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._sender.send(("pytest_runtest_logreport", {"report": data}))

    def pytest_warning_recorded(self, warning_message: Any, when: Any, nodeid: str, location: Any) -> None:
        if not self._has_begun:
            return  # pytest repeats the warnings from before the registration
        message = warnings.WarningMessage(
            str(warning_message.message),
            warning_message.category,
            warning_message.filename,
            warning_message.lineno,
        )
        arguments = {"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
        self._sender.send(("pytest_warning_recorded", arguments))


def _run_fork(
    session: pytest.Session, groups: Sequence[Sequence[pytest.Item]], indices: int, sender: Connection
) -> NoReturn:
    code = 1
    try:
        die_with_parent()
        for inherited in [*weakref.finalize._registry]:  # type: ignore[attr-defined]
            inherited.detach()  # the parent removes its own files
        # Python 3.11 does not do so: our own code would take the main thread for one of ggml's, and bind it.
        threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
        _separate_files(session.config)
        session.config.pluginmanager.register(_Reporter(session.config, sender))
        _run(session, _items(groups, indices))
        code = 0
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # the collecting process ends the fork in this way
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        os._exit(code)


def _separate_files(config: pytest.Config) -> None:
    """Take the terminal away, and give the fork its own capture files and temporary folder."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    with Path(os.devnull).open("r+b") as null:
        os.dup2(null.fileno(), 1)
    capture.start_global_capturing()
    capture.suspend_global_capture()
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.mktemp("fork")


def _items(groups: Sequence[Sequence[pytest.Item]], indices: int) -> Iterator[pytest.Item]:
    while index := os.read(indices, _INDEX_BYTES):
        yield from groups[int.from_bytes(index, "big")]


def _run(session: pytest.Session, items: Iterator[pytest.Item]) -> None:
    try:
        item = next(items, None)
        while item is not None and not session.shouldfail and not session.shouldstop:
            following = next(items, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
    finally:
        session._setupstate.teardown_exact(None)
