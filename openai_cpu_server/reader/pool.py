"""Pool of reader processes, which finds the work that kills them."""

from __future__ import annotations

import contextlib
import enum
import hashlib
import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import msgspec

from openai_cpu_server.contract.caller import CALLER
from openai_cpu_server.errors import (
    UNLOADABLE,
    DeadlyInput,
    EngineUnavailable,
    InvalidRequest,
    NativePanic,
    ReaderLost,
    StartupError,
    TemplateFailed,
)
from openai_cpu_server.fairness import FairQueue
from openai_cpu_server.reader import messages as wire
from openai_cpu_server.reader.child import SILENCE, ReaderChild, ReaderDied
from openai_cpu_server.reader.messages import SHARE_S, ModelSource

logger = logging.getLogger(__name__)

_TRIES = 2
_KILLED_S = 15.0
"""Retry time after kills from outside."""
_EXPLAINED = frozenset({"SIGXCPU"})
"""A retry would exceed the CPU limit again."""
_NO_LIBRARY = f"exit_{UNLOADABLE}"
_FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", SILENCE})
_AGAIN_S = 5

R = TypeVar("R")
_encoder = msgspec.msgpack.Encoder()
_replies = msgspec.msgpack.Decoder(wire.WorkReply)


class ReadersUnusable(EngineUnavailable):
    def __init__(self) -> None:
        super().__init__(
            "llama.cpp cannot be loaded on this machine: the server's log has the reason.", _AGAIN_S
        )


class WorkKind(enum.Enum):
    """Work by its duration, with places of its own."""

    QUICK = "quick"
    """Conversations and ordinary texts."""
    PROGRAM = "program"
    """Clients' schemas, grammars, templates and long texts."""
    MEDIA = "media"
    """Pictures and sounds, of two seconds at most."""
    DOCUMENT = "document"
    """Documents and their pages, which may use the whole share."""


class WorkLoad(NamedTuple):
    waiting: int
    running: int


class OpenedKey(NamedTuple):
    """Model, opened where needed."""

    number: int
    source: ModelSource
    digest: bytes


class _Reader:
    """Process, used by the thread that has borrowed its place."""

    def __init__(self, child: ReaderChild, start: wire.ReaderStart) -> None:
        self.child = child
        self.open_models: set[int] = set()
        child.send(_encoder.encode(start))

    def do(self, work: wire.WorkFor[R]) -> wire.WorkReply:
        self.child.send(*_frames(work))
        try:
            return _replies.decode(self.child.receive())
        except msgspec.DecodeError:
            self.child.kill()
            self.child.close()
            raise ReaderDied("bad_message") from None


@dataclass(eq=False)
class _Place:
    own_kind: WorkKind
    """The only kind that starts a process."""
    kinds: tuple[WorkKind, ...]
    """All kinds, the most urgent first."""
    reader: _Reader | None = None
    lent_to: WorkKind | None = None
    latest_caller: tuple[str, ...] | None = None
    """Client whose sound may be open."""
    closed_models: set[int] = field(default_factory=set)
    """Models that the process can close."""

    def takes(self, kind: WorkKind) -> bool:
        return self.lent_to is None and (kind is self.own_kind or self.reader is not None)


@dataclass(eq=False)
class _Waiter:
    caller: tuple[str, ...]
    place: _Place | None = None


_OF_FILES = (WorkKind.MEDIA, WorkKind.DOCUMENT)
_PLACES = 2
"""Twice one client's places, so that its slow work never blocks others."""
_MOST_OF_CLIENT = {**dict.fromkeys(WorkKind, 1), WorkKind.QUICK: 1 + _PLACES}
_MOST_REFUSALS = 1024
_DEAR_S = 1.0
"""A slower rejection, or one after several pieces, is remembered."""


class ReaderPool:
    """Readers in which clients take turns. Methods block, on any thread."""

    def __init__(
        self,
        readable: Iterable[Path] | None = None,
        *,
        child: ReaderChild | None = None,
        opens_media: bool = False,
        share_s: float = SHARE_S,
    ) -> None:
        """`readable`: model folders, or None for no sandbox. `child`: a running process to take over.
        `share_s`: CPU seconds for one piece of work."""
        self.deaths = 0
        self.on_death: Callable[[str], None] = lambda cause: None
        """Callback on any thread, with `ReaderDied.cause`."""
        self._folders = None if readable is None else sorted({str(path) for path in readable})
        self._opens_media = opens_media
        self._share_s = share_s
        urgent_first = (WorkKind.PROGRAM, WorkKind.QUICK)
        self._quick = _Place(WorkKind.QUICK, urgent_first)
        self._programs = [_Place(WorkKind.PROGRAM, urgent_first) for _ in range(_PLACES)]
        files = (_Place(kind, (kind,)) for kind in _OF_FILES for _ in range(_PLACES))
        self._places = [self._quick, *self._programs, *files]
        self._is_alone = True
        self._queues: dict[WorkKind, FairQueue[_Waiter]] = {
            kind: FairQueue(most) for kind, most in _MOST_OF_CLIENT.items()
        }
        self._changed = threading.Condition()
        self._refusals: OrderedDict[bytes, InvalidRequest | DeadlyInput] = OrderedDict()
        self._numbers = itertools.count(1)
        self._is_closing = False
        # The kernel ends a child when the thread that started it ends.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="readers")
        self._starter.submit(self._start, self._quick, child)

    def load(self) -> dict[str, WorkLoad]:
        with self._changed:
            return {kind.value: WorkLoad(len(queue), queue.num_held) for kind, queue in self._queues.items()}

    @property
    def pids(self) -> list[int]:
        return [place.reader.child.pid for place in self._places if place.reader is not None]

    def start_program_reader(self) -> None:
        """Start a process for programs, which otherwise delay the first process's other work."""
        with self._changed:
            started = self._start_spare() if self._is_alone else None
        if started is not None:
            with contextlib.suppress(
                CancelledError, EngineUnavailable
            ):  # the first program reports the failure to its client
                started.result()

    def open(self, source: ModelSource) -> tuple[OpenedKey, wire.VocabularyFacts]:
        """Open a model. Raises StartupError."""
        number = next(self._numbers)
        work = wire.OpenModel(key=number, source=source, has_facts=False)
        try:
            with self._borrowed(WorkKind.QUICK) as place:
                opened = self._tried(place, work, None)
                if place.reader is not None:
                    place.reader.open_models.add(number)
        except DeadlyInput as error:
            raise StartupError(f"{source.path} is damaged: {error}") from None
        except ReadersUnusable as error:
            raise StartupError(str(error)) from None
        except (NativePanic, InvalidRequest, EngineUnavailable) as error:
            raise StartupError(f"{source.path} cannot be read: {error}") from None
        assert opened.facts is not None
        return OpenedKey(number, source, opened.digest), opened.facts

    def forget(self, key: OpenedKey) -> None:
        """Let the processes close the model later."""
        for place in self._places:
            place.closed_models.add(key.number)

    def do(
        self, work: wire.WorkFor[R], *, model: OpenedKey | None = None, kind: WorkKind = WorkKind.QUICK
    ) -> R:
        """Return the result. Raises what the work raises; DeadlyInput if it kills processes repeatedly;
        ReaderLost after kills from outside; EngineUnavailable without a process."""
        if self._refusals and (refusal := self._refusals.get(_digest(work))) is not None:
            raise refusal.with_traceback(None)
        start_s = time.monotonic()
        try:
            with self._borrowed(kind) as place:
                start_s = time.monotonic()
                return self._tried(place, work, model)
        except (InvalidRequest, DeadlyInput) as error:
            is_dear = work.is_continued or time.monotonic() - start_s > min(_DEAR_S, self._share_s)
            if is_dear or isinstance(error, DeadlyInput):
                digest = _digest(work)
                with self._changed:
                    self._refusals[digest] = error
                    if len(self._refusals) > _MOST_REFUSALS:
                        self._refusals.popitem(last=False)
            raise

    def close(self) -> None:
        """Kill all processes and their work."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        for place in self._places:
            if place.reader is not None:
                place.reader.child.kill()
        self._starter.shutdown(wait=True, cancel_futures=True)
        with self._changed:  # a borrower must see the death, and not a socket that another thread has closed
            self._changed.wait_for(lambda: all(place.lent_to is None for place in self._places))
        for place in self._places:
            if place.reader is not None:
                place.reader.child.close()

    def __enter__(self) -> ReaderPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _borrowed(self, kind: WorkKind) -> Iterator[_Place]:
        caller, queue = CALLER.get(), self._queues[kind]
        ticket = _Waiter(caller)
        with self._changed:
            queue.add(caller, ticket)
            self._grant()
            self._changed.wait_for(lambda: ticket.place is not None or self._is_closing)
            if ticket.place is None:
                queue.remove(caller, ticket)
                raise EngineUnavailable("The server is shutting down.", _AGAIN_S)
        start_s = time.monotonic()
        try:
            yield ticket.place
        finally:
            with self._changed:
                ticket.place.lent_to = None
                queue.give_back(caller, time.monotonic() - start_s)
                self._grant()
                self._changed.notify_all()

    def _grant(self) -> None:
        for place in self._places:
            for kind in place.kinds:
                while self._takes(place, kind) and (ticket := self._queues[kind].take()) is not None:
                    own = (each for each in self._places if each.latest_caller == ticket.caller)
                    free = (each for each in own if each.own_kind is kind and self._takes(each, kind))
                    ticket.place = lent = next(free, place)
                    lent.lent_to, lent.latest_caller = kind, ticket.caller
                    self._changed.notify_all()
                    if kind is WorkKind.PROGRAM and lent is not self._quick:
                        self._start_spare()
        is_waiting = self._quick.lent_to is WorkKind.PROGRAM and len(self._queues[WorkKind.QUICK]) > 0
        if is_waiting and self._is_alone:
            self._start_spare()  # it takes the work that waits for the program

    def _takes(self, place: _Place, kind: WorkKind) -> bool:
        """Let the first process make programs until another has started and opened the model."""
        if kind is WorkKind.PROGRAM and self._quick.reader is not None and self._is_alone:
            is_first = self._quick.lent_to is not WorkKind.PROGRAM
            return place.takes(kind) and is_first is (place is self._quick)
        return place.takes(kind) and (place is not self._quick or kind is WorkKind.QUICK)

    def _start_spare(self) -> Future[_Reader] | None:
        for place in self._programs:
            if place.reader is None and place.lent_to is None and not self._is_closing:
                return self._starter.submit(self._start, place)
        return None

    def _tried(self, place: _Place, work: wire.WorkFor[R], model: OpenedKey | None) -> R:
        causes: list[str] = []
        began_s = time.monotonic()
        while not _is_settled(causes, time.monotonic() - began_s):
            try:
                return self._done(place, work, model)
            except ReaderDied as died:
                if self._is_closing:  # it was killed by `close`
                    raise EngineUnavailable("The server is shutting down.", _AGAIN_S) from None
                self.deaths += 1
                self.on_death(died.cause)
                place.reader = None
                if died.cause == _NO_LIBRARY:
                    raise ReadersUnusable from None
                causes.append(died.cause)
                logger.error(
                    "a reader process died (%s) during a piece of work (%s); the next one starts",
                    died.cause,
                    type(work).__name__,
                )
        if causes[-1] in _FROM_OUTSIDE:
            raise ReaderLost(
                f"The processes that read this were killed or stopped one after the other ({causes[-1]})."
            )
        if causes[-1] in _EXPLAINED:
            raise DeadlyInput("Reading this input takes too long.")
        raise DeadlyInput(
            f"This input crashes the process that reads it ({causes[-1]}): "
            "use shorter words and texts, or simpler schemas."
        )

    def _done(self, place: _Place, work: wire.WorkFor[R], model: OpenedKey | None) -> R:
        try:
            reader = place.reader or self._starter.submit(self._start, place).result()
        except (CancelledError, RuntimeError):  # `close` came first
            raise EngineUnavailable("The server is shutting down.", _AGAIN_S) from None
        closed_models, place.closed_models = place.closed_models, set()
        for number in closed_models & reader.open_models:
            reader.open_models.discard(number)
            reader.do(wire.CloseModel(number))
        if model is not None and model.number not in reader.open_models:
            self._open_again(reader, model)
        reply = reader.do(work)
        if reply.is_last:
            place.reader = None
            reader.child.close()
            with contextlib.suppress(RuntimeError):  # `close` came first
                self._starter.submit(self._start, place)
        if isinstance(refused := reply.result, wire.WorkRefused):
            if refused.kind == InvalidRequest.__name__:
                raise InvalidRequest(refused.message, param=refused.param, code=refused.code)
            kinds = {each.__name__: each for each in (StartupError, TemplateFailed, NativePanic)}
            raise kinds[refused.kind](refused.message)
        return cast("R", reply.result)

    def _open_again(self, reader: _Reader, model: OpenedKey) -> None:
        result = reader.do(wire.OpenModel(key=model.number, source=model.source, has_facts=True)).result
        if isinstance(result, wire.ModelOpened) and result.digest == model.digest:
            reader.open_models.add(model.number)
            return
        why = result.message if isinstance(result, wire.WorkRefused) else "it has another vocabulary"
        reader.do(wire.CloseModel(model.number))
        message = f"The model's file has changed, and an administrator must reload it: {why}"
        raise EngineUnavailable(message, _AGAIN_S)

    def _start(self, place: _Place, child: ReaderChild | None = None) -> _Reader:
        """Run on the one starting thread, because the kernel ends a child with its parent thread."""
        if self._is_closing:
            raise EngineUnavailable("The server is shutting down.", _AGAIN_S)
        if place.reader is None:
            try:
                opens_media = self._opens_media and place.own_kind in _OF_FILES
                start = wire.ReaderStart(self._folders, opens_media, self._share_s)
                place.reader = _Reader(child or ReaderChild(), start)
            except OSError as error:
                raise EngineUnavailable(f"No process can be started: {error}", _AGAIN_S) from None
            with self._changed:
                self._is_alone = self._is_alone and place not in self._programs
                self._grant()
        return place.reader


def _frames(work: wire.WorkFor[R]) -> list[bytes]:
    if isinstance(work, wire.FileWork):
        return [_encoder.encode(msgspec.structs.replace(work, data=b"")), work.data]
    return [_encoder.encode(work)]


def _digest(work: wire.WorkFor[R]) -> bytes:
    digest = hashlib.sha256()
    for frame in _frames(work.identity):
        digest.update(frame)
    return digest.digest()


def _is_settled(causes: Sequence[str], seconds: float) -> bool:
    if not causes:
        return False
    if causes[-1] in _FROM_OUTSIDE:
        return len(causes) > 1 and seconds > _KILLED_S
    return causes[-1] in _EXPLAINED or sum(cause not in _FROM_OUTSIDE for cause in causes) >= _TRIES
