"""llama.cpp's log, a loaded `llama_model`, and the fingerprint of saved cells."""

from __future__ import annotations

import atexit
import ctypes
import enum
import functools
import hashlib
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.errors import StartupError
from openai_cpu_server.kernels.library import bindings_version
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.gguf.header import GgufHeader, description, model_files, total_bytes
from openai_cpu_server.llama.gguf.heads import head_count, layer_count
from openai_cpu_server.llama.offload.choice import NativeSplit

C = TypeVar("C", bound="Closable")


class Closable(ABC):
    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class NativeObject(Closable):
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
_PREFACES = ("error loading model", "failed to initialize the context")


class NativeLog:
    """llama.cpp's last warnings and errors. Prints nothing."""

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
        """Stop calls into Python, because a native thread may log while the interpreter ends."""
        silent = ctypes.cast(ctypes.CDLL(None).getpid, llama_cpp.llama_log_callback)
        for set_callback in self._setters:
            set_callback(silent, None)

    def cleared(self) -> NativeLog:
        """Empty the log before a call whose `cause` is wanted."""
        self._lines.clear()
        return self

    def cause(self) -> str | None:
        """Return the last error that names a cause, else the last warning."""
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


_COPIED_WHOLE = frozenset({"deepseek4"})
_COMPUTED_APART = frozenset({"plamo2"})
"""The graph uses `kv_head * n_seqs` as the place of the first state (plamo2.cpp)."""
_SIGNS_OF_DAMAGE = ("not within the file bounds", "failed to read", "exceeds remaining file size")


class HeadUse(enum.Enum):
    LOADED = "loaded"
    SKIPPED = "skipped"
    """llama.cpp requires that they are whole."""
    HIDDEN = "hidden"


class Model(NativeObject):
    """Closed after everything made from it."""

    def __init__(self, header: GgufHeader, handle: object, file_bytes: int, places: NativeSplit) -> None:
        super().__init__(handle, llama_cpp.llama_model_free)
        self.header = header
        self.file_bytes = file_bytes
        self.places = places
        self.is_copied_whole = header.architecture in _COPIED_WHOLE
        """True if llama.cpp crashes when it copies parts of a sequence (llama-kv-cache-dsv4.cpp)."""
        self.is_computed_apart = header.architecture in _COMPUTED_APART
        """True if llama.cpp computes several sequences together wrongly, or crashes."""

    @classmethod
    def open(
        cls,
        header: GgufHeader,
        *,
        repack: bool,
        reads_weights: bool = False,
        heads: HeadUse = HeadUse.SKIPPED,
        on_progress: Callable[[float], None],
        places: NativeSplit | None = None,
    ) -> Model:
        """`repack`: rearrange weights in private memory. `reads_weights`: copy instead of mapping them."""
        params = llama_cpp.llama_model_default_params()
        params.use_extra_bufts = repack
        mode = llama_cpp.LLAMA_LOAD_MODE_NONE if reads_weights else llama_cpp.LLAMA_LOAD_MODE_MMAP
        params.load_mode = mode
        params.load_mtp = heads is HeadUse.LOADED
        if heads is HeadUse.HIDDEN:
            key, num_layers = header.for_architecture, layer_count(header) - head_count(header)
            params.kv_overrides = metadata_overrides(
                {key("block_count"): num_layers, key("nextn_predict_layers"): 0}
            )
        return cls._load(header, params, on_progress, places or NativeSplit())

    @classmethod
    def open_vocabulary(cls, header: GgufHeader) -> Model:
        params = llama_cpp.llama_model_default_params()
        params.vocab_only, params.load_mode = True, llama_cpp.LLAMA_LOAD_MODE_MMAP
        return cls._load(header, params, lambda fraction: None, NativeSplit())

    @classmethod
    def _load(
        cls,
        header: GgufHeader,
        params: llama_cpp.llama_model_params,
        on_progress: Callable[[float], None],
        places: NativeSplit,
    ) -> Model:
        files = model_files(header)
        log = native_log().cleared()
        failures: list[BaseException] = []

        def report(fraction: float, _user_data: object) -> bool:
            try:
                on_progress(fraction)
            except BaseException as failure:  # it ends the load, and is raised again
                failures.append(failure)
            return not failures

        callback = llama_cpp.llama_progress_callback(report)
        params.progress_callback = callback
        places.apply_to(params)
        handle = llama_cpp.llama_model_load_from_file(os.fsencode(header.path), params)
        if failures:
            raise failures[0]
        if handle is None:
            path, cause = header.path, log.cause()
            if cause is None:
                raise places.failure(f"Cannot load {path}: llama.cpp gave no reason.")
            is_damage = any(sign in cause for sign in _SIGNS_OF_DAMAGE)
            what = f"{path} is truncated or damaged" if is_damage else f"Cannot load {path}"
            raise places.failure(f"{what}: {cause}.")
        model = cls(header, handle, total_bytes(files), places)
        if llama_cpp.llama_model_is_diffusion(handle):
            model.close()
            raise StartupError(
                f"{header.path} ({header.architecture}) is a diffusion model: it writes all tokens of an "
                "answer at once and improves them in rounds, where this server computes one token after the "
                "other."
            )
        return model

    @property
    def vocab(self) -> object:
        return llama_cpp.llama_model_get_vocab(self.handle)

    @property
    def path(self) -> Path:
        return self.header.path

    @property
    def description(self) -> str:
        """llama.cpp's own derives the size from the number of layers, which is wrong for most models."""
        return description(self.header, self.num_parameters)

    @property
    def num_parameters(self) -> int:
        return int(llama_cpp.llama_model_n_params(self.handle))

    @property
    def context_trained(self) -> int:
        """0 if unknown."""
        return int(llama_cpp.llama_model_n_ctx_train(self.handle))

    @property
    def input_width(self) -> int:
        return int(llama_cpp.llama_model_n_embd_inp(self.handle))

    @property
    def output_width(self) -> int:
        return int(llama_cpp.llama_model_n_embd_out(self.handle))

    @property
    def is_recurrent(self) -> bool:
        """True if layers keep a state per sequence instead of cells."""
        model = self.handle
        return bool(llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model))

    @property
    def window(self) -> int:
        """Tokens, or 0 if all layers attend to everything."""
        return int(llama_cpp.llama_model_n_swa(self.handle))

    @property
    def has_window(self) -> bool:
        """True if a guard can keep cells of a window."""
        return self.window > 0 and not self.is_copied_whole

    @property
    def generates_text(self) -> bool:
        model = self.handle
        return (
            bool(llama_cpp.llama_model_has_decoder(model))
            and not llama_cpp.llama_model_has_encoder(model)
            and self.header.arch_int("attention.causal") != 0
        )

    def chat_template(self, name: str | None = None) -> str | None:
        """`name`: further template such as `tool_use`."""
        key = None if name is None else name.encode()
        source = llama_cpp.llama_model_chat_template(self.handle, key)
        return None if source is None else str(source.decode("utf-8", "replace"))


def metadata_overrides(facts: Mapping[str, str | int]) -> object:
    """Return llama.cpp's array, which an empty element ends."""
    array = (llama_cpp.llama_model_kv_override * (len(facts) + 1))()
    for element, (key, value) in zip(array, facts.items(), strict=False):
        element.key = key.encode()
        if isinstance(value, int):
            element.tag, element.value.val_i64 = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT, value
        else:
            element.tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_STR
            element.value.val_str = value.encode()[:127].decode(errors="ignore").encode()
    return array


_EDGE_BYTES = 2**20
_SAMPLES = 64
_SAMPLE_BYTES = 4096


def cells_fingerprint(
    header: GgufHeader, info: ModelInfo, projector: Path | None, *, flash_attention: bool
) -> str:
    facts = (
        f"model={_model_digest(model_files(header))}",
        f"kv={info.kv_type},{info.kv_bytes_per_token}",
        *([f"projector={_model_digest([projector])}"] if projector is not None else []),
        f"flash={'on' if flash_attention else 'off'}",
        f"llama={bindings_version()},{llama_cpp.llama_version().decode()}",
    )
    return " ".join(facts)


def _model_digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        try:
            with path.open("rb") as file:
                facts = os.fstat(file.fileno())
                # Samples can miss an edit.
                digest.update(f"{facts.st_size} {facts.st_mtime_ns}\n".encode())
                digest.update(file.read(_EDGE_BYTES))
                last = max(0, facts.st_size - _EDGE_BYTES)
                for index in range(_SAMPLES):
                    file.seek(last * index // _SAMPLES)
                    digest.update(file.read(_SAMPLE_BYTES))
                file.seek(last)
                digest.update(file.read())
        except OSError as error:
            raise StartupError(f"Cannot read {path}: {error.strerror}.") from None
    return digest.hexdigest()[:32]
