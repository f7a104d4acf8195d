"""The switch that ends a running `llama_decode` early."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

from openai_cpu_server.llama.bindings import llama_cpp


class AbortSwitch:
    """llama.cpp asks this switch between the nodes of its graph whether to go on; the answer must not need
    the GIL.

    So the callback is the C library's own `strlen`, and its data a text of length 0 (go on) or 1 (abort):
    the first of two bytes is the switch. `press` counts only while armed. Who presses has looked at a step a
    moment before: if that ends meanwhile it may be the next one that is thrown away, and computed again.
    """

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(2)
        self._lock = threading.Lock()
        self._is_armed = False

    def connect(self, params: llama_cpp.llama_context_params) -> None:
        """Make the context ask this switch. The context keeps its address: it must not outlive the switch."""
        params.abort_callback = ctypes.cast(ctypes.CDLL(None).strlen, llama_cpp.ggml_abort_callback)
        params.abort_callback_data = ctypes.addressof(self._text)

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        self._set(armed=True)
        try:
            yield
        finally:
            self._set(armed=False)

    def press(self) -> None:
        """Ask the running step to end. Any thread may call it at any time, also while no step runs."""
        with self._lock:
            if self._is_armed:
                self._text[0] = b"\x01"

    def _set(self, *, armed: bool) -> None:
        with self._lock:
            self._is_armed = armed
            self._text[0] = b"\x00"
