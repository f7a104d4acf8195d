"""The API process's side of its reader processes: lends them out, replaces the dead, blames who killed."""

from __future__ import annotations

import enum
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

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
from openai_cpu_server.reader.child import SILENCE, ReaderChild, ReaderDied
from openai_cpu_server.reader.messages import (
    CloseModel,
    ModelOpened,
    ModelSource,
    OpenModel,
    ReaderStart,
    Result,
    VocabularyFacts,
    Work,
    WorkRefused,
    WorkReply,
)

logger = logging.getLogger(__name__)

_TRIES = 2
_KILLED_S = 15.0
"""So long a piece of work is tried again whose processes somebody else kills."""
_EXPLAINED = frozenset({"SIGXCPU"})
"""It took too long: once more would take as long."""
_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", SILENCE})
_AGAIN_S = 5

_encoder = msgspec.msgpack.Encoder()
_replies = msgspec.msgpack.Decoder(WorkReply)


class WorkLane(enum.Enum):
    """Work that takes long waits for work that does, and for nobody else; nor does anybody wait for it."""

    SHORT = "short"
    LONG = "long"


class OpenedKey(NamedTuple):
    """A model as the readers know it. It is opened in each process when it is first needed there."""

    number: int
    source: ModelSource
    digest: bytes


class _Reader:
    """A process, and what is open in it. Whoever has borrowed it may use it."""

    def __init__(self, child: ReaderChild, start: ReaderStart) -> None:
        """Raises ReaderDied."""
        self.child = child
        self.known: set[int] = set()
        """Numbers of the models that are open in it."""
        child.send(_encoder.encode(start))

    def do(self, work: Work) -> WorkReply:
        """Raises ReaderDied, and whatever keeps the work from being told."""
        self.child.send(_encoder.encode(work))
        try:
            return _replies.decode(self.child.receive())
        except msgspec.DecodeError:
            self.child.kill()
            self.child.close()
            raise ReaderDied("bad_message") from None


class _Place:
    """Where a process is, or another will be."""

    def __init__(self) -> None:
        self.reader: _Reader | None = None
        self.is_lent = False


class ReaderPool:
    """Some processes. Any thread may call its methods; all of them block."""

    def __init__(
        self,
        readable: Iterable[Path] | None = None,
        *,
        children: Sequence[ReaderChild] = (),
        opens_media: bool = False,
    ) -> None:
        """`readable`: the folders that models are in, for the processes' sandbox; None: they have none.
        `children`: processes that are there already, two at most, and are the pool's from here on. All others
        are started when they are needed, the first one at once. `opens_media`: they may be asked to."""
        self.deaths = 0
        """Counts processes that died of what they did, or were killed."""
        self.on_death: Callable[[str], None] = lambda cause: None
        """Called in any thread, with a signal's name, `exit_1` and the like, or `silence`."""
        folders = None if readable is None else sorted({str(path) for path in readable})
        self._first = ReaderStart(folders, opens_media)
        self._short, self._any = _Place(), _Place()
        self._free = threading.Condition()
        self._numbers = itertools.count(1)
        self._closed_models: dict[_Place, set[int]] = {self._short: set(), self._any: set()}
        self._is_closing = False
        # The kernel ends a child when the thread that started it ends.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="readers")
        first, second = [*children, None, None][:2]
        self._starter.submit(self._start, self._short, first)
        if second is not None:
            self._starter.submit(self._start, self._any, second)

    @property
    def pids(self) -> list[int]:
        return [place.reader.child.pid for place in (self._short, self._any) if place.reader is not None]

    def open(self, source: ModelSource) -> tuple[OpenedKey, VocabularyFacts]:
        """Raises StartupError."""
        number = next(self._numbers)
        work = OpenModel(key=number, source=source, is_known=False)
        try:
            with self._borrowed(WorkLane.SHORT) as place:
                opened = self._tried(place, work, None)
                if place.reader is not None:
                    place.reader.known.add(number)
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

    def do(self, work: Work, *, model: OpenedKey | None = None, lane: WorkLane = WorkLane.SHORT) -> Result:
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
            if place.reader is not None:
                place.reader.child.kill()
        self._starter.shutdown(wait=True, cancel_futures=True)
        for place in (self._short, self._any):
            if place.reader is not None:
                place.reader.child.close()

    def __enter__(self) -> ReaderPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _borrowed(self, lane: WorkLane) -> Iterator[_Place]:
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

    def _lendable(self, lane: WorkLane) -> _Place | None:
        """Short work goes where long work does not, if it can."""
        if self._is_closing:
            raise EngineUnavailable("The server is shutting down.", _AGAIN_S)
        if lane is WorkLane.SHORT and not self._short.is_lent:
            return self._short
        is_there = self._any.reader is not None or lane is WorkLane.LONG
        return self._any if is_there and not self._any.is_lent else None

    def _tried(self, place: _Place, work: Work, model: OpenedKey | None) -> Result:
        causes: list[str] = []
        began_s = time.monotonic()
        while not _is_settled(causes, time.monotonic() - began_s):
            try:
                return self._done(place, work, model)
            except ReaderDied as died:
                self.deaths += 1
                self.on_death(died.cause)
                place.reader = None
                causes.append(died.cause)
                logger.error(
                    "a reader process died (%s) of a piece of work (%s); the next one starts",
                    died.cause,
                    type(work).__name__,
                )
        if causes[-1] in _FROM_OUTSIDE:
            raise ReaderLost(
                f"The process that read this was killed or stopped, and so were the next ones ({causes[-1]})."
            )
        raise DeadlyInput(_verdict(causes[-1]))

    def _done(self, place: _Place, work: Work, model: OpenedKey | None) -> Result:
        """Raises ReaderDied, and what `do` raises."""
        reader = place.reader or self._started(place)
        for number in self._taken(place) & reader.known:
            reader.known.discard(number)
            reader.do(CloseModel(number))
        if model is not None and model.number not in reader.known:
            self._open_again(reader, model)
        reply = reader.do(work)
        if reply.is_last:
            place.reader = None
            reader.child.close()
        if isinstance(reply.result, WorkRefused):
            raise _raised(reply.result)
        return reply.result

    def _taken(self, place: _Place) -> set[int]:
        numbers, self._closed_models[place] = self._closed_models[place], set()
        return numbers

    def _open_again(self, reader: _Reader, model: OpenedKey) -> None:
        """Raises EngineUnavailable where the file is another by now."""
        result = reader.do(OpenModel(key=model.number, source=model.source, is_known=True)).result
        if isinstance(result, ModelOpened) and result.digest == model.digest:
            reader.known.add(model.number)
            return
        why = result.message if isinstance(result, WorkRefused) else "it has another vocabulary"
        reader.do(CloseModel(model.number))
        message = f"The model's file has changed and must be loaded anew by an administrator: {why}"
        raise EngineUnavailable(message, _AGAIN_S)

    def _started(self, place: _Place) -> _Reader:
        """Raises what `_start` raises."""
        try:
            return self._starter.submit(self._start, place).result()
        except (CancelledError, RuntimeError):  # `close` came first
            raise EngineUnavailable("The server is shutting down.", _AGAIN_S) from None

    def _start(self, place: _Place, child: ReaderChild | None = None) -> _Reader:
        """Runs on the one thread that starts processes. Raises EngineUnavailable, ReaderDied."""
        if self._is_closing:
            raise EngineUnavailable("The server is shutting down.", _AGAIN_S)
        if place.reader is None:
            try:
                place.reader = _Reader(child or ReaderChild(), self._first)
            except OSError as error:
                raise EngineUnavailable(f"No process can be started: {error}", _AGAIN_S) from None
        return place.reader


def _raised(refused: WorkRefused) -> ServerError:
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
        return len(causes) > 1 and seconds > _KILLED_S
    return causes[-1] in _EXPLAINED or sum(cause not in _FROM_OUTSIDE for cause in causes) >= _TRIES


def _verdict(cause: str) -> str:
    if cause in _EXPLAINED:
        return "Reading this takes longer than it may."
    return (
        f"The process that reads this dies of it ({cause}): make words and texts shorter, or schemas simpler."
    )
