"""A reader process: `python -m openai_cpu_server.reader.process FD`.

It reads one piece of work after the other from its socket, within bounds of memory and computing time, on a
thread with a large stack: the splitters of some tokenizers recurse for each character of a long word, and the
grammar library for each rule of a chain. Beyond these bounds the process dies, which is what it is for.
"""

from __future__ import annotations

import gc
import resource
import socket
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

import msgspec
import psutil

from openai_cpu_server.child_processes.confine import confine
from openai_cpu_server.child_processes.signals import die_with_parent, leave_signals_to_parent
from openai_cpu_server.contract.framing import framed, read_frame
from openai_cpu_server.llama.model.native import native_log
from openai_cpu_server.reader.decoders import load_decoders
from openai_cpu_server.reader.messages import OpenModel, ReaderStart, Result, Work, WorkRefused, WorkReply
from openai_cpu_server.reader.work import ReaderWorker

STACK_BYTES = 512 * 2**20
"""Only what is used of it takes memory."""
_DATA_BYTES = 2 * 2**30
"""What else the process may have. A vocabulary of 260,000 tokens takes some 100 MB."""
_GROWTH_BYTES = 256 * 2**20
"""A process that has grown by so much since it last opened a model gives it back by ending."""
_COMPUTING_S = 20
"""Seconds of computing that one piece of work may take. The longest that is meant to pass takes two."""

_works: msgspec.msgpack.Decoder[Work] = msgspec.msgpack.Decoder(Work)
_start: msgspec.msgpack.Decoder[ReaderStart] = msgspec.msgpack.Decoder(ReaderStart)
_encoder = msgspec.msgpack.Encoder()


class _Bounds:
    def __init__(self) -> None:
        self._own = psutil.Process()
        self._usual_bytes = 0
        self.open()
        _limit(resource.RLIMIT_DATA, STACK_BYTES + _DATA_BYTES)
        _limit(resource.RLIMIT_CORE, 0)  # a death is no accident here, and its core would have prompts in it

    def open(self) -> None:
        """What it has now is what it needs."""
        self._usual_bytes = self._own.memory_info().rss

    def begin(self) -> None:
        """The kernel ends the process when it has computed for too long."""
        _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + _COMPUTING_S)

    @property
    def has_grown(self) -> bool:
        return self._own.memory_info().rss > self._usual_bytes + _GROWTH_BYTES


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _serve(sock: socket.socket, stream: BinaryIO) -> None:
    """Until the other side is gone."""
    worker, bounds = ReaderWorker(), _Bounds()
    while (payload := read_frame(stream)) is not None:
        work = _works.decode(payload)
        bounds.begin()
        result = _contained(worker, work)
        if isinstance(work, OpenModel):
            gc.freeze()
            bounds.open()
        is_last = bounds.has_grown
        sock.sendall(framed(_encoder.encode(WorkReply(result, is_last))))
        if is_last:
            return


def _contained(worker: ReaderWorker, work: Work) -> Result:
    """A panic of Rust code arrives as a BaseException."""
    try:
        return worker.do(work)
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
    thread = threading.Thread(target=_serve, args=(sock, stream))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
