"""Reader process: `python -m openai_cpu_server.reader.process FD`.

Work comes from the socket, one piece at a time. Beyond its limits of memory and CPU time the process dies.
The stack is large, because the splitters of some tokenizers recurse for each character of a long word, and
the grammar library for each rule of a chain.
"""

from __future__ import annotations

import ctypes
import gc
import pkgutil
import resource
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

import msgspec
import psutil

from openai_cpu_server.child_processes.confine import confine
from openai_cpu_server.child_processes.signals import die_with_parent, leave_signals_to_parent
from openai_cpu_server.contract.framing import framed, read_frame
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.llama.model.native import native_log
from openai_cpu_server.reader.decoders import load_decoders
from openai_cpu_server.reader.messages import (
    MakeGrammar,
    OpenModel,
    ReaderStart,
    Result,
    Work,
    WorkRefused,
    WorkReply,
)
from openai_cpu_server.reader.work import GRAMMARS, ReaderWorker

STACK_BYTES = 512 * 2**20
"""Only the used part takes memory."""
_DATA_BYTES = 2 * 2**30
"""Limit beside the stack. A vocabulary of 260,000 tokens takes about 100 MB."""
_GROWTH_BYTES = 256 * 2**20
"""A process that has grown by this since it last opened a model ends to return the memory."""
_MODEL_S = 60.0
"""CPU time for opening a model, whose file is not a client's input."""
_NATIVE_S = 5
"""Native code gets this much longer until the process is killed."""

_works: msgspec.msgpack.Decoder[Work] = msgspec.msgpack.Decoder(Work)
_start: msgspec.msgpack.Decoder[ReaderStart] = msgspec.msgpack.Decoder(ReaderStart)
_encoder = msgspec.msgpack.Encoder()


class _ShareUsed(BaseException):
    """BaseException, because libraries do not catch it."""


class _Bounds:
    """Limits of memory and CPU time, created on the worker thread."""

    def __init__(self, share_s: float) -> None:
        self.share_s = share_s
        self._own = psutil.Process()
        self._usual_bytes = 0
        self._is_working = False
        self.has_interrupted = False
        """True if work was aborted halfway, which makes the process unusable."""
        self._thread = threading.get_ident()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})  # it is for the main thread
        self.open()
        _limit(resource.RLIMIT_DATA, STACK_BYTES + _DATA_BYTES)
        _limit(resource.RLIMIT_CORE, 0)  # a death is no accident here, and its core would have prompts in it

    def open(self) -> None:
        """Take the present memory as the baseline."""
        self._usual_bytes = self._own.memory_info().rss

    def begin(self, work: Work) -> None:
        """Python code is interrupted when the share is used up; native code dies a little later."""
        share_s = _MODEL_S if isinstance(work, OpenModel) else self.share_s
        _limit(resource.RLIMIT_CPU, int(time.process_time() + share_s) + 1 + _NATIVE_S)
        self._is_working = True
        signal.setitimer(signal.ITIMER_PROF, share_s)

    def end(self) -> None:
        self._is_working = False
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        if self.has_interrupted:  # CPython is slower after this, but the process is about to end
            _raise_in(self._thread, None)

    def interrupt(self, number: int, frame: object) -> None:
        """SIGPROF handler, on the main thread."""
        if self._is_working:
            self.has_interrupted = True
            _raise_in(self._thread, _ShareUsed)

    @property
    def has_grown(self) -> bool:
        return self._own.memory_info().rss > self._usual_bytes + _GROWTH_BYTES


def _raise_in(thread: int, exception: type[BaseException] | None) -> None:
    """Raise the exception before the thread's next Python instruction; None cancels one that is pending."""
    raised = ctypes.py_object(exception) if exception else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _serve(sock: socket.socket, stream: BinaryIO, share_s: float, has_bounds: SimpleQueue[_Bounds]) -> None:
    bounds = _Bounds(share_s)
    has_bounds.put(bounds)
    worker = ReaderWorker()
    while (payload := read_frame(stream)) is not None:
        work = _works.decode(payload)
        result = _contained(worker, work, bounds)
        if isinstance(work, OpenModel):
            gc.freeze()
            bounds.open()
        is_last = bounds.has_grown or bounds.has_interrupted
        sock.sendall(framed(_encoded(result, is_last=is_last)))
        if is_last:
            return


def _encoded(result: Result, *, is_last: bool) -> bytes:
    try:
        return _encoder.encode(WorkReply(result, is_last))
    except UnicodeEncodeError:
        message = "What comes of this has halves of surrogate pairs alone, which are no characters."
        return _encoder.encode(WorkReply(WorkRefused(kind=InvalidRequest.__name__, message=message), is_last))


def _contained(worker: ReaderWorker, work: Work, bounds: _Bounds) -> Result:
    """Rust panics arrive as BaseException."""
    try:
        try:
            if isinstance(work, MakeGrammar):
                pkgutil.resolve_name(GRAMMARS)  # the import is in no client's share
            bounds.begin(work)
            return worker.do(work)
        finally:
            bounds.end()
    except _ShareUsed:
        message = f"Reading this takes more than {bounds.share_s:g} seconds of computing."
        return WorkRefused(kind=InvalidRequest.__name__, message=message)
    except BaseException as panic:
        return WorkRefused(kind="NativePanic", message=f"{type(panic).__name__}: {panic}"[:500])


def main() -> None:
    leave_signals_to_parent()
    die_with_parent()
    native_log()
    sock = socket.socket(fileno=int(sys.argv[1]))
    stream = sock.makefile("rb")
    if (first := read_frame(stream)) is None:
        return
    start = _start.decode(first)
    if start.opens_media:
        load_decoders()
    if start.readable is not None:
        confine(read=map(Path, start.readable))
    threading.stack_size(STACK_BYTES)
    has_bounds: SimpleQueue[_Bounds] = SimpleQueue()
    thread = threading.Thread(target=_serve, args=(sock, stream, start.share_s, has_bounds))
    thread.start()
    signal.signal(signal.SIGPROF, has_bounds.get().interrupt)
    thread.join()


if __name__ == "__main__":
    main()
