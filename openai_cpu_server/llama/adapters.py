"""LoRA adapters of a loaded model: which are loaded, and which one the next step computes with."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import NamedTuple

from openai_cpu_server.contract.adapter import Adapter, LoadedAdapter
from openai_cpu_server.errors import AdapterFailed
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.cells.context import Context
from openai_cpu_server.llama.gguf.adapter_file import AdapterFile, file_digest
from openai_cpu_server.llama.model.model import Model
from openai_cpu_server.llama.model.native import native_log

_FileState = tuple[int, int, int]
"""Inode, size and time of change: equal as long as nobody writes to the file or puts another in its place."""


class _Native(NamedTuple):
    address: int
    """Of the `llama_adapter_lora`."""
    scale: float


class NativeAdapters:
    """Owns the adapters of one model, and sets one of them on its context.

    Not thread-safe but for `check`.
    """

    def __init__(self, model: Model, context: Context) -> None:
        """Both must live until `close`."""
        self._model = model
        self._context = context
        self._loaded: dict[str, _Native] = {}
        self._checked: dict[str, tuple[AdapterFile, _FileState]] = {}
        self._in_use: str | None = None

    def check(self, adapter: Adapter) -> None:
        """Look at the file, which takes a moment for a large one. Any thread. Raises `AdapterFailed`.

        llama.cpp ends the process for some files that it should refuse, so everything that it takes for
        granted is looked at here.
        """
        path = Path(adapter.path)
        state = _file_state(path)
        if file_digest(path) != adapter.digest:
            raise AdapterFailed(f"{path} is not the file any more that was to be loaded.")
        self._checked[adapter.key] = AdapterFile.open(path, self._model.header), state

    def load(self, adapter: Adapter) -> LoadedAdapter:
        """Load an adapter that was checked. Raises `AdapterFailed`; then nothing of it stays."""
        assert adapter.key not in self._loaded, f"{adapter.key} is loaded already"
        file, state = self._checked.pop(adapter.key)
        native = _Native(self._open(file.path), adapter.scale)
        if _file_state(file.path) != state:
            _free(native)
            raise AdapterFailed(f"{file.path} has changed while it was loaded.")
        self._loaded[adapter.key] = native
        return LoadedAdapter(
            key=adapter.key, rank=file.rank, num_tensors=file.num_pairs, size_bytes=file.num_bytes
        )

    def use(self, key: str | None) -> None:
        """Compute with this adapter, None without one, from the next decode on.

        A change makes llama.cpp plan its next graph anew, which takes some milliseconds.
        """
        if key == self._in_use:
            return
        if key is None:
            self._context.set_adapter(None, 1.0)
        else:
            self._context.set_adapter(*self._loaded[key])
        self._in_use = key

    def unload(self, key: str) -> None:
        """Free an adapter."""
        if key == self._in_use:
            self.use(None)
        _free(self._loaded.pop(key))

    def close(self) -> None:
        """Free all. The context must not compute any more."""
        while self._loaded:
            _free(self._loaded.popitem()[1])

    def _open(self, path: Path) -> int:
        log = native_log()
        log.clear()
        handle = llama_cpp.llama_adapter_lora_init(self._model.handle, os.fsencode(path))
        address = ctypes.cast(handle, ctypes.c_void_p).value
        if address is None:
            raise AdapterFailed(f"Cannot load {path}: {log.cause() or 'llama.cpp gave no reason'}.")
        return address


def _free(native: _Native) -> None:
    llama_cpp.llama_adapter_lora_free(ctypes.cast(native.address, ctypes.POINTER(ctypes.c_void_p)))


def _file_state(path: Path) -> _FileState:
    try:
        facts = path.stat()
    except OSError as error:
        raise AdapterFailed(f"Cannot read {path}: {error.strerror}.") from None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns
