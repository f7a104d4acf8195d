"""llama.cpp's state per process: its start and its log."""

from __future__ import annotations

import atexit
import ctypes
import functools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from openai_cpu_server.llama.bindings import llama_cpp

C = TypeVar("C", bound="Closable")


class Closable(ABC):
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


_WARN, _ERROR = 3, 4
"""Levels; llama_cpp's own logger has outdated numbers."""
_CONSEQUENCES = ("failed to load model", "failed to load GGUF split")
"""Lines that only report an earlier error."""
_PREFACES = ("error loading model", "failed to initialize the context")


class NativeLog:
    """Keeps llama.cpp's last warnings and errors and prints nothing. Its callback must outlive the
    library's use of it, hence `mute`."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=64)
        self._callback = llama_cpp.llama_log_callback(self._add)
        self._setters: list[Callable[[object, object], None]] = []

    def install(self) -> None:
        self.listen_to(llama_cpp.llama_log_set)

    def listen_to(self, set_callback: Callable[[object, object], None]) -> None:
        if set_callback not in self._setters:
            self._setters.append(set_callback)
        set_callback(self._callback, None)

    def mute(self) -> None:
        """Stop calls into Python, because a native thread may log while the interpreter ends. Any C
        function without effect serves as the callback."""
        silent = ctypes.cast(ctypes.CDLL(None).getpid, llama_cpp.llama_log_callback)
        for set_callback in self._setters:
            set_callback(silent, None)

    def cleared(self) -> NativeLog:
        """Empty the log before a call whose `cause` is wanted."""
        self._lines.clear()
        return self

    def cause(self) -> str | None:
        """Return the last error that names a cause, else the last warning, else None."""
        lines = list(self._lines)
        errors = [text for level, text in lines if level == _ERROR]
        telling = [text for text in errors if not text.startswith(_CONSEQUENCES)]
        warnings = [text for level, text in lines if level == _WARN]
        return next((found[-1] for found in (telling, errors, warnings) if found), None)

    def _add(self, level: int, text: bytes, _user_data: object) -> None:
        if level not in (_WARN, _ERROR):
            return
        line = text.decode("utf-8", "replace").strip()
        head, colon, rest = line.partition(": ")
        while colon and (head.isidentifier() or head in _PREFACES):  # names of functions
            line = rest
            head, colon, rest = line.partition(": ")
        self._lines.append((level, line))


@functools.cache
def native_log() -> NativeLog:
    """Start llama.cpp once, and replace the log callback of llama_cpp."""
    log = NativeLog()
    log.install()
    atexit.register(log.mute)
    llama_cpp.llama_backend_init()
    return log
