"""Implementation of the contract's `Backend` with llama.cpp."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from openai_cpu_server.contract.media import MeasuredMedia, MediaSize, not_taken
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import Adapter, LoadedAdapter, ModelInfo
from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.contract.step import CacheFileLimit, SavedBlock, Step, StepResult
from openai_cpu_server.errors import AdapterFailed
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.cells.context import Context
from openai_cpu_server.llama.gguf.tensors import AdapterFile, file_digest
from openai_cpu_server.llama.grammar.constraints import Constraints
from openai_cpu_server.llama.host import ComputeThreads, Machine
from openai_cpu_server.llama.loading import LoadedParts, load_model
from openai_cpu_server.llama.model.model import Model
from openai_cpu_server.llama.model.native import native_log
from openai_cpu_server.llama.slots import SlotTable
from openai_cpu_server.llama.steps import StepRunner


class LlamaBackend:
    """Owns the model, the context, saved blocks, compiled grammars and samplers. Not thread-safe except
    for `interrupt` and `forced`."""

    def __init__(self, loaded: LoadedParts) -> None:
        """Take ownership of `loaded`."""
        self._loaded = loaded
        self._constraints = Constraints(loaded.vocabulary)
        self._adapters = NativeAdapters(loaded.model, loaded.context)
        self._slots = SlotTable(loaded, self._constraints)
        self._steps = StepRunner(loaded, self._slots, self._constraints, self._adapters)

    @classmethod
    def load(
        cls, options: EngineOptions, on_progress: Callable[[float], None], machine: Machine | None = None
    ) -> LlamaBackend:
        """Load and warm up a model. Raises `StartupError` with one line for the terminal."""
        backend = cls.load_cold(options, on_progress, machine)
        try:
            backend.warm_up()
        except BaseException:
            backend.close()
            raise
        return backend

    @classmethod
    def load_cold(
        cls, options: EngineOptions, on_progress: Callable[[float], None], machine: Machine | None = None
    ) -> LlamaBackend:
        """Load a model. Raises `StartupError` with one line for the terminal."""
        backend = cls(load_model(options, on_progress, machine or Machine()))
        try:
            backend._constraints.wait_until_ready()
        except BaseException:
            backend.close()
            raise
        return backend

    def warm_up(self) -> bool:
        """Compute one token, so that no request pays for the first use of the weights. Return False if
        interrupted; another call continues."""
        return self._steps.warm_up()

    @property
    def info(self) -> ModelInfo:
        return self._loaded.info

    @property
    def threads(self) -> ComputeThreads:
        return self._loaded.context.compute_threads

    def execute(self, step: Step) -> StepResult:
        """Execute a step. Raises `DecodeFailed` or `BadLogits`, after which the backend is unusable."""
        return self._steps.run(step)

    def interrupt(self) -> None:
        """End the running step early, if it may be interrupted. Any thread may call this at any time."""
        self._loaded.abort.press()

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return self._loaded.vocabulary.piece(token, special=special and token not in self.info.end_tokens)

    def forced(self, constraint: Constraint, output: tuple[int, ...]) -> tuple[int, ...]:
        return self._constraints.start(constraint, output).take_forced()

    def measure(self, size: MediaSize) -> MeasuredMedia:
        store = self._loaded.row_store
        return store.measure(size) if store is not None else not_taken(size)

    def check_adapter(self, adapter: Adapter) -> None:
        self._adapters.check(adapter)

    def load_adapter(self, adapter: Adapter) -> LoadedAdapter:
        """Load an adapter and use it once, so that no request pays for that. Raises `AdapterFailed`."""
        loaded = self._adapters.load(adapter)
        try:
            self._adapters.use(adapter.key)
            if not self._steps.computes_numbers():
                raise AdapterFailed(f"{adapter.path} makes the model compute numbers that are not finite.")
        except AdapterFailed:
            self._adapters.unload(adapter.key)
            raise
        return loaded

    def unload_adapter(self, key: str) -> None:
        self._adapters.unload(key)

    def export_cache(
        self, path: str, blocks: Sequence[SavedBlock], limit: CacheFileLimit | None = None
    ) -> None:
        self._slots.save_to(path, blocks, limit)

    def import_cache(self, path: str) -> tuple[SavedBlock, ...]:
        return self._slots.load_from(path)

    def close(self) -> None:
        self._slots.close()
        self._constraints.close()
        if self._loaded.draft_model is not None:
            self._loaded.draft_model.close()
        self._loaded.context.close()
        self._adapters.close()
        self._loaded.model.close()


class _Native(NamedTuple):
    address: int
    scale: float


class NativeAdapters:
    """Owns the adapters of one model, and sets one of them on its context. Not thread-safe except for
    `check`."""

    def __init__(self, model: Model, context: Context) -> None:
        """Both arguments must live until `close`."""
        self._model = model
        self._context = context
        self._loaded: dict[str, _Native] = {}
        self._checked: dict[str, tuple[AdapterFile, tuple[int, int, int]]] = {}
        self._in_use: str | None = None

    def check(self, adapter: Adapter) -> None:
        """Validate the file, because llama.cpp ends the process for some that it should reject. Any thread
        may call this. Raises `AdapterFailed`."""
        path = Path(adapter.path)
        state = _file_state(path)
        if file_digest(path) != adapter.digest:
            raise AdapterFailed(f"{path} is not the file any more that was to be loaded.")
        self._checked[adapter.key] = AdapterFile.open(path, self._model.header), state

    def load(self, adapter: Adapter) -> LoadedAdapter:
        """Load a checked adapter. Raises `AdapterFailed`; then nothing of it stays loaded."""
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
        """Compute with this adapter, or none, from the next decode on. A change costs some milliseconds,
        because llama.cpp plans its next graph anew."""
        if key == self._in_use:
            return
        if key is None:
            self._context.set_adapter(None, 1.0)
        else:
            self._context.set_adapter(*self._loaded[key])
        self._in_use = key

    def unload(self, key: str) -> None:
        if key == self._in_use:
            self.use(None)
        _free(self._loaded.pop(key))

    def close(self) -> None:
        while self._loaded:
            _free(self._loaded.popitem()[1])

    def _open(self, path: Path) -> int:
        log = native_log().cleared()
        handle = llama_cpp.llama_adapter_lora_init(self._model.handle, os.fsencode(path))
        address = ctypes.cast(handle, ctypes.c_void_p).value
        if address is None:
            raise AdapterFailed(f"Cannot load {path}: {log.cause() or 'llama.cpp gave no reason'}.")
        return address


def _free(native: _Native) -> None:
    llama_cpp.llama_adapter_lora_free(ctypes.cast(native.address, ctypes.POINTER(ctypes.c_void_p)))


def _file_state(path: Path) -> tuple[int, int, int]:
    """Inode, size and time of modification."""
    try:
        facts = path.stat()
    except OSError as error:
        raise AdapterFailed(f"Cannot read {path}: {error.strerror}.") from None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns
