"""The API process's side of its reader processes: lends them out, replaces the dead, blames who killed."""

from __future__ import annotations

import enum
import itertools
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import msgspec

from openai_cpu_server.contract.framing import LENGTH, framed
from openai_cpu_server.dispatch.death import death_cause
from openai_cpu_server.errors import (
    DeadlyInput,
    EngineUnavailable,
    InvalidRequest,
    NativePanic,
    ReaderLost,
    ServerError,
    StartupError,
    TemplateFailed,
)
from openai_cpu_server.reader.messages import (
    CloseModel,
    ModelFacts,
    ModelOpened,
    ModelSource,
    OpenModel,
    Refused,
    Reply,
    Result,
    Work,
)
from openai_cpu_server.sandbox.environment import child_environment

logger = logging.getLogger(__name__)

_COMMAND = (sys.executable, "-m", "openai_cpu_server.reader.process")
_PATIENCE_S = 120.0
"""A process that says nothing for so long is stopped, or waits for a disk. One that computes ends earlier by
itself."""
_TRIES = 2
_KILLED_S = 15.0
"""So long a piece of work is tried again whose processes somebody else kills."""
_EXPLAINED = frozenset({"SIGXCPU", "silence"})
"""It took too long: once more would take as long."""
_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"})
_AGAIN_S = 5

_encoder = msgspec.msgpack.Encoder()
_replies = msgspec.msgpack.Decoder(Reply)


class Lane(enum.Enum):
    """Work that takes long waits for work that does, and for nobody else; nor does anybody wait for it."""

    SHORT = "short"
    LONG = "long"


class OpenedKey(NamedTuple):
    """A model as the readers know it. It is opened in each process when it is first needed there."""

    number: int
    source: ModelSource
    digest: bytes


class _Died(Exception):
    """`cause`: a signal's name, `exit_1` and the like, `silence`."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class _Process:
    """A child process and the socket to it. Whoever has borrowed it may use it."""

    def __init__(self, command: Sequence[str]) -> None:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._child = subprocess.Popen(
                    [*command, str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    env=child_environment(),
                )
            except BaseException:
                ours.close()
                raise
        ours.settimeout(_PATIENCE_S)
        self._socket = ours
        self._stream = ours.makefile("rb")
        self.known: set[int] = set()
        """Numbers of the models that are open in it."""

    @property
    def pid(self) -> int:
        return self._child.pid

    def do(self, work: Work) -> Reply:
        """Raises _Died, and whatever keeps the work from being sent."""
        message = framed(_encoder.encode(work))
        try:
            self._socket.sendall(message)
            (length,) = LENGTH.unpack(self._read(LENGTH.size))
            return _replies.decode(self._read(length))
        except TimeoutError:
            self._child.kill()
            self.close()
            raise _Died("silence") from None
        except (OSError, msgspec.DecodeError):
            self.close()
            raise _Died(death_cause(self._child.returncode)) from None

    def close(self) -> None:
        """It ends with its socket. Returns when it is gone."""
        with suppress(OSError):
            self._stream.close()
            self._socket.close()
        try:
            self._child.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def kill(self) -> None:
        self._child.kill()

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionError("the process is gone")
        return data


class _Place:
    """Where a process is, or another will be."""

    def __init__(self) -> None:
        self.process: _Process | None = None
        self.is_lent = False


class ReaderPool:
    """Some processes. Any thread may call its methods; all of them block."""

    def __init__(self, readable: Iterable[Path] | None = None) -> None:
        """One process is started at once. `readable`: the folders that models are in, for the processes'
        sandbox; None: they have none."""
        self.deaths = 0
        """Of processes that died of what they did, or were killed."""
        self.on_death: Callable[[str], None] = lambda cause: None
        """Called in any thread, with a signal's name, `exit_1` and the like, or `silence`."""
        told = None if readable is None else sorted({str(path) for path in readable})
        self._command = (*_COMMAND, json.dumps(told))
        self._short, self._any = _Place(), _Place()
        self._free = threading.Condition()
        self._numbers = itertools.count(1)
        self._closed_models: dict[_Place, set[int]] = {self._short: set(), self._any: set()}
        self._is_closing = False
        # The kernel ends a child when the thread that started it ends.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="readers")
        self._starter.submit(self._start, self._short)

    @property
    def pids(self) -> list[int]:
        return [place.process.pid for place in (self._short, self._any) if place.process is not None]

    def prepare(self) -> None:
        """Starts the process for long work, before somebody needs it. Returns at once."""
        self._starter.submit(self._prepared)

    def open(self, source: ModelSource) -> tuple[OpenedKey, ModelFacts]:
        """Raises StartupError."""
        number = next(self._numbers)
        work = OpenModel(key=number, source=source, is_known=False)
        try:
            with self._borrowed(Lane.SHORT) as place:
                opened = self._tried(place, work, None)
                if place.process is not None:
                    place.process.known.add(number)
        except DeadlyInput as error:
            raise StartupError(f"{source.path} is damaged: {error}") from None
        except (NativePanic, InvalidRequest, EngineUnavailable) as error:
            raise StartupError(f"{source.path} cannot be read: {error}") from None
        assert isinstance(opened, ModelOpened)
        assert opened.facts is not None
        key = OpenedKey(number, source, opened.digest)
        return key, opened.facts

    def forget(self, key: OpenedKey) -> None:
        """Nobody needs the model any more. Returns at once."""
        for numbers in self._closed_models.values():
            numbers.add(key.number)

    def do(self, work: Work, *, model: OpenedKey | None = None, lane: Lane = Lane.SHORT) -> Result:
        """Raises what the work raises; DeadlyInput where it kills the process again and again; ReaderLost
        where somebody else does; EngineUnavailable where there is none."""
        with self._borrowed(lane) as place:
            return self._tried(place, work, model)

    def close(self) -> None:
        """End all processes. What they do is lost."""
        with self._free:
            self._is_closing = True
            self._free.notify_all()
        for place in (self._short, self._any):
            if place.process is not None:
                place.process.kill()
        self._starter.shutdown(wait=True, cancel_futures=True)
        for place in (self._short, self._any):
            if place.process is not None:
                place.process.close()

    def __enter__(self) -> ReaderPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _borrowed(self, lane: Lane) -> Iterator[_Place]:
        with self._free:
            while (place := self._lendable(lane)) is None:
                self._free.wait()
            place.is_lent = True
        try:
            yield place
        finally:
            with self._free:
                place.is_lent = False
                self._free.notify_all()

    def _lendable(self, lane: Lane) -> _Place | None:
        """Short work goes where long work does not, if it can."""
        if self._is_closing:
            raise EngineUnavailable("The server is shutting down.", _AGAIN_S)
        if lane is Lane.SHORT and not self._short.is_lent:
            return self._short
        is_there = self._any.process is not None or lane is Lane.LONG
        return self._any if is_there and not self._any.is_lent else None

    def _tried(self, place: _Place, work: Work, model: OpenedKey | None) -> Result:
        causes: list[str] = []
        began_s = time.monotonic()
        while not _is_settled(causes, time.monotonic() - began_s):
            try:
                return self._done(place, work, model)
            except _Died as died:
                self.deaths += 1
                self.on_death(died.cause)
                place.process = None
                causes.append(died.cause)
                logger.error(
                    "a reader process died (%s) of a piece of work (%s); the next one starts",
                    died.cause,
                    type(work).__name__,
                )
        if causes[-1] in _FROM_OUTSIDE:
            raise ReaderLost(
                f"The process that read this was killed, and so were the next ones ({causes[-1]})."
            )
        raise DeadlyInput(_verdict(causes[-1]))

    def _done(self, place: _Place, work: Work, model: OpenedKey | None) -> Result:
        """Raises _Died, and what `do` raises."""
        process = place.process or self._starter.submit(self._start, place).result()
        for number in self._taken(place) & process.known:
            process.known.discard(number)
            process.do(CloseModel(number))
        if model is not None and model.number not in process.known:
            self._open_again(process, model)
        reply = process.do(work)
        if reply.is_last:
            place.process = None
            process.close()
        if isinstance(reply.result, Refused):
            raise _raised(reply.result)
        return reply.result

    def _taken(self, place: _Place) -> set[int]:
        numbers, self._closed_models[place] = self._closed_models[place], set()
        return numbers

    def _open_again(self, process: _Process, model: OpenedKey) -> None:
        """Raises EngineUnavailable where the file is another by now."""
        result = process.do(OpenModel(key=model.number, source=model.source, is_known=True)).result
        if isinstance(result, ModelOpened) and result.digest == model.digest:
            process.known.add(model.number)
            return
        why = result.message if isinstance(result, Refused) else "it has another vocabulary"
        process.do(CloseModel(model.number))
        message = f"The model's file has changed and must be loaded anew by an administrator: {why}"
        raise EngineUnavailable(message, _AGAIN_S)

    def _start(self, place: _Place) -> _Process:
        """Runs on the one thread that starts processes. Raises EngineUnavailable."""
        if self._is_closing:
            raise EngineUnavailable("The server is shutting down.", _AGAIN_S)
        if place.process is None:
            try:
                place.process = _Process(self._command)
            except OSError as error:
                raise EngineUnavailable(f"No process can be started: {error}", _AGAIN_S) from None
        return place.process

    def _prepared(self) -> None:
        with suppress(EngineUnavailable):
            self._start(self._any)


def _raised(refused: Refused) -> ServerError:
    if refused.kind == InvalidRequest.__name__:
        return InvalidRequest(refused.message, param=refused.param, code=refused.code)
    known: dict[str, type[ServerError]] = {
        each.__name__: each for each in (StartupError, TemplateFailed, NativePanic)
    }
    return known[refused.kind](refused.message)


def _is_settled(causes: Sequence[str], seconds: float) -> bool:
    """Whether the work is not tried again, after deaths of these causes within so many seconds."""
    if not causes:
        return False
    if causes[-1] in _FROM_OUTSIDE:
        return seconds > _KILLED_S
    return causes[-1] in _EXPLAINED or sum(cause not in _FROM_OUTSIDE for cause in causes) >= _TRIES


def _verdict(cause: str) -> str:
    if cause in _EXPLAINED:
        return "Reading this takes longer than it may."
    return (
        f"The process that reads this dies of it ({cause}): make words and texts shorter, or schemas simpler."
    )
