"""`--forks N`: pytest imports and collects all tests once, and N forks of it take them, file by file.

Each worker of pytest-xdist does so for itself; from a fresh clone, which has nothing compiled, that takes
each of them 14 seconds. Nobody deals out work here: the numbers of the files stand in a pipe, in the order in
which they are to begin, and each fork reads its next one there.
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
    **dict.fromkeys(["tests/test_fences.py", "tests/test_house.py"], "the package's syntax trees"),
}  # what the files share that begin so; one fork takes them all
_NUMBER_BYTES = 2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run the tests in N forks")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    options = session.config.option
    if options.forks < 2 or options.collectonly or session.testsfailed:
        return None  # pytest goes on by itself
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
    """The side of the process that has collected: it reports what its forks tell."""

    def __init__(self, session: pytest.Session, groups: Sequence[Sequence[pytest.Item]]) -> None:
        self._session, self._groups = session, groups
        self._numbers, write = os.pipe()
        os.write(write, b"".join(n.to_bytes(_NUMBER_BYTES, "big") for n in range(len(groups))))
        os.close(write)
        self._running: dict[Connection, int] = {}  # where they tell, and their process numbers
        self._at: dict[int, tuple[str, Any]] = {}  # what each has begun and not ended

    def run(self, number: int) -> None:
        for _ in range(number):
            self._fork()
        while self._running:
            for heard in wait(list(self._running)):
                self._hear(heard)
            if self._session.shouldfail:
                raise self._session.Failed(self._session.shouldfail)
            if self._session.shouldstop:
                raise self._session.Interrupted(self._session.shouldstop)

    def end(self) -> None:
        """Those that still run are interrupted."""
        for pid in self._running.values():
            os.kill(pid, signal.SIGINT)
        for heard, pid in self._running.items():
            heard.close()
            os.waitpid(pid, 0)
        os.close(self._numbers)

    def _fork(self) -> None:
        hears, tells = Pipe(duplex=False)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            hears.close()
            _be_a_fork(self._session, self._groups, self._numbers, tells)
        tells.close()
        self._running[hears] = pid

    def _hear(self, heard: Connection) -> None:
        pid, hook = self._running[heard], self._session.config.hook
        try:
            name, told = heard.recv()
        except EOFError:
            self._end_of(heard)
            return
        if name == "pytest_runtest_logstart":
            self._at[pid] = told["nodeid"], told["location"]
        elif name == "pytest_runtest_logfinish":
            del self._at[pid]
        elif name == "pytest_runtest_logreport":
            data = told["report"]
            told = {"report": hook.pytest_report_from_serializable(config=self._session.config, data=data)}
        if name == "pytest_warning_recorded":
            hook.pytest_warning_recorded.call_historic(kwargs=told)
        else:
            getattr(hook, name)(**told)

    def _end_of(self, heard: Connection) -> None:
        """One that dies on the way is a failure of its test, and another goes on with the other files."""
        pid = self._running.pop(heard)
        heard.close()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 0:
            return
        nodeid, location = self._at.pop(pid, ("the end of a fork", ("", None, "")))
        said = f"the process of the tests ended with {code}; what follows in this file has not run"
        report = pytest.TestReport(nodeid, location, {}, "failed", said, "call")  # type: ignore[arg-type]
        self._session.config.hook.pytest_runtest_logreport(report=report)
        self._fork()


class _Tells:
    """A plugin of a fork: what is reported there is reported to whom it comes from."""

    def __init__(self, config: pytest.Config, tells: Connection) -> None:
        self._config, self._tells = config, tells
        self._has_begun = False

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self._has_begun = True
        self._tells.send(("pytest_runtest_logstart", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self._tells.send(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._tells.send(("pytest_runtest_logreport", {"report": data}))

    def pytest_warning_recorded(self, warning_message: Any, when: Any, nodeid: str, location: Any) -> None:
        if not self._has_begun:
            return  # it is told of all that came before it was registered
        said = warnings.WarningMessage(
            str(warning_message.message),
            warning_message.category,
            warning_message.filename,
            warning_message.lineno,
        )
        told = {"warning_message": said, "when": when, "nodeid": nodeid, "location": location}
        self._tells.send(("pytest_warning_recorded", told))


def _be_a_fork(
    session: pytest.Session, groups: Sequence[Sequence[pytest.Item]], numbers: int, tells: Connection
) -> NoReturn:
    code = 1
    try:
        die_with_parent()
        for inherited in [*weakref.finalize._registry]:  # type: ignore[attr-defined]
            inherited.detach()  # what the parent made, it removes
        # Python 3.11 forgets to: our own code would take the main thread for one of ggml's, and bind it.
        threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
        _have_files_of_its_own(session.config)
        session.config.pluginmanager.register(_Tells(session.config, tells))
        _run(session, _items(groups, numbers))
        code = 0
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # so it was wanted
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        os._exit(code)


def _have_files_of_its_own(config: pytest.Config) -> None:
    """Take the terminal away, and give the fork its own capture files and temporary folder."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    with Path(os.devnull).open("r+b") as nothing:
        os.dup2(nothing.fileno(), 1)
    capture.start_global_capturing()
    capture.suspend_global_capture()
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.mktemp("fork")


def _items(groups: Sequence[Sequence[pytest.Item]], numbers: int) -> Iterator[pytest.Item]:
    while read := os.read(numbers, _NUMBER_BYTES):
        yield from groups[int.from_bytes(read, "big")]


def _run(session: pytest.Session, items: Iterator[pytest.Item]) -> None:
    try:
        item = next(items, None)
        while item is not None and not session.shouldfail and not session.shouldstop:
            following = next(items, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
    finally:
        session._setupstate.teardown_exact(None)
