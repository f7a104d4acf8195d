"""llama.cpp's state per process: its start and its log."""

from __future__ import annotations

import atexit
import ctypes
import enum
import functools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from openai_cpu_server.llama.bindings import llama_cpp

C = TypeVar("C", bound="Closable")


class Closable(ABC):
    """Object that is closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class NativeObject(Closable):
    """Owns an object of llama.cpp until `close`."""

    def __init__(self, handle: object, free: Callable[[object], None]) -> None:
        self._handle: object | None = handle
        self._free = free

    @property
    def handle(self) -> object:
        assert self._handle is not None, f"the {type(self).__name__} is closed"
        return self._handle

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._free(handle)


class _Level(enum.IntEnum):
    """`ggml_log_level` of ggml.h (llama_cpp's own logger has outdated numbers)."""

    WARN = 3
    ERROR = 4


_CONSEQUENCES = ("failed to load model", "failed to load GGUF split")
"""Prefixes of lines that only report that an earlier line was fatal."""
_PREFACES = ("error loading model", "failed to initialize the context")


class NativeLog:
    """Keeps llama.cpp's last warnings and errors in memory and prints nothing.

    Owns the callback that the library holds, so the library must be muted before the callback is freed.
    """

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=64)
        self._callback = llama_cpp.llama_log_callback(self._keep)
        self._setters: list[Callable[[object, object], None]] = []

    def install(self) -> None:
        self.listen_to(llama_cpp.llama_log_set)

    def listen_to(self, set_callback: Callable[[object, object], None]) -> None:
        """Keep the lines of a library, replacing its present callback."""
        if set_callback not in self._setters:
            self._setters.append(set_callback)
        set_callback(self._callback, None)

    def mute(self) -> None:
        """Stop calls from the library into Python, because a native thread may log while the interpreter
        ends.

        Any C function without effect serves as the callback, because it ignores its arguments.
        """
        silent = ctypes.cast(ctypes.CDLL(None).getpid, llama_cpp.llama_log_callback)
        for set_callback in self._setters:
            set_callback(silent, None)

    def cleared(self) -> NativeLog:
        """Return the emptied log, so that `cause` refers to the next call."""
        self._lines.clear()
        return self

    def cause(self) -> str | None:
        """Return the last error that names a cause, else the last warning, else None, as one line."""
        lines = list(self._lines)
        errors = [text for level, text in lines if level == _Level.ERROR]
        telling = [text for text in errors if not text.startswith(_CONSEQUENCES)]
        warnings = [text for level, text in lines if level == _Level.WARN]
        return next((found[-1] for found in (telling, errors, warnings) if found), None)

    def _keep(self, level: int, text: bytes, _user_data: object) -> None:
        if level in (_Level.WARN, _Level.ERROR):
            line = text.decode("utf-8", "replace").strip()
            self._lines.append((level, _without_origin(line)))


def _without_origin(line: str) -> str:
    """Drop C++ function names, and words that stand in every failure, from the front of a line."""
    while True:
        head, colon, rest = line.partition(": ")
        if not colon or not (head.isidentifier() or head in _PREFACES):
            return line
        line = rest


@functools.cache
def native_log() -> NativeLog:
    """Start llama.cpp once per process, and replace the log callback that importing llama_cpp has set."""
    log = NativeLog()
    log.install()
    atexit.register(log.mute)
    llama_cpp.llama_backend_init()
    return log
