"""Encoder of pictures and sounds: llama.cpp's libmtmd, in a thread that takes turns with the engine's.

An operation longer than a turn ends beside the steps, with Linux's lowest priority.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from openai_cpu_server.contract.media import (
    BLIND,
    DEAF,
    MOST_SOUND_S,
    MeasuredMedia,
    MediaEmbeddings,
    MediaItem,
    MediaSize,
    PictureSize,
    Sound,
    SoundSize,
)
from openai_cpu_server.errors import ServerError, StartupError
from openai_cpu_server.llama.bindings import llama_cpp, mtmd_library
from openai_cpu_server.llama.model.kv_size import ROW_CACHE_BYTES
from openai_cpu_server.llama.model.model import Model, NativeObject, native_log

_MARKER = b"<__media__>"
_LARGE = PictureSize(2048, 2048)
_LEAST_SOUND_S = 0.1
"""libmtmd crashes on one sample, and on less than two frames before some encoders. OpenAI requires
as much."""
_MOST_SOUND_ROWS = 4096
"""Some encoders attend to all of a sound at once."""
_PAUSE_S = 0.01


class EncodingFailed(ServerError): ...


class EncodedRows(NamedTuple):
    values: npt.NDArray[np.float32]
    """(rows, width of the model's input)"""
    places: npt.NDArray[np.int32]
    """(4, rows): time, y and x relative to the first position, and 0; or the row's number if positions are
    consecutive."""


RowsKey = tuple[str, int]
"""Digest of a media item, and the number of its part."""


class _Encoding:
    def __init__(self, projector: Projector, item: MediaItem, part: int) -> None:
        self.key = item.digest, part
        self.is_done = False
        self.is_over = False
        self._may_go = threading.Semaphore(0)
        self._waits = threading.Event()
        """Set while the encoder waits for a turn, or when it has ended."""
        self._until_s = 0.0
        self._rows: EncodedRows | None = None
        self._error: BaseException | None = None
        arguments = (projector, item, part)
        self._thread = threading.Thread(target=self._work, args=arguments, name="encode", daemon=True)
        self._thread.start()

    # -- the engine's thread -----------------------------------------------------------------------------

    def go_on(self, seconds: float) -> bool:
        """Return True if the encoder is done."""
        self._until_s = time.perf_counter() + seconds
        if self._waits.is_set() and not self.is_done:
            self._waits.clear()
            self._may_go.release()
        self._waits.wait(seconds)
        return self.is_done

    def give_up(self) -> None:
        self.is_over = True
        self._waits.clear()
        self._may_go.release()

    def join(self) -> None:
        self._thread.join()

    def result(self) -> EncodedRows:
        self._thread.join()
        if self._error is not None:
            raise EncodingFailed(str(self._error)) from self._error
        rows, self._rows = self._rows, None
        assert rows is not None, "it was given up"
        return rows

    # -- the encoder's -----------------------------------------------------------------------------------

    def wait_for_turn(self) -> None:
        self._waits.set()
        self._may_go.acquire()

    def pause(self) -> None:
        if time.perf_counter() >= self._until_s and not self.is_over:
            self.wait_for_turn()

    def _work(self, projector: Projector, item: MediaItem, part: int) -> None:
        # The threads that compute with this one are begun by it, and inherit that.
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        try:
            self._rows = projector.encode(item, part, self)
        except BaseException as error:
            self._error = error
        finally:
            self.is_done = True
            self._waits.set()


class Projector(NativeObject):
    """One thread at a time may encode; any may measure."""

    def __init__(self, path: Path, model: Model, *, threads: int, flash_attention: bool) -> None:
        """`model` must outlive the projector."""
        self._mtmd = mtmd = mtmd_library()
        log = native_log().cleared()
        log.listen_to(mtmd.mtmd_log_set)
        self._encoding: _Encoding | None = None
        self._nodes = 8
        """Graph nodes between two looks at the time."""
        self._watch_time()
        self._observe = llama_cpp.ggml_backend_sched_eval_callback(self._may_continue)
        params = mtmd.mtmd_context_params_default()
        params.use_gpu = params.warmup = params.print_timings = False
        params.n_threads = threads
        params.media_marker = _MARKER
        params.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if flash_attention
            else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        params.cb_eval = self._observe
        handle = mtmd.mtmd_init_from_file(str(path).encode(), model.handle, params)
        if handle is None:
            raise StartupError(f"Cannot load the projector {path}: {log.cause() or 'no reason given'}.")
        super().__init__(handle, mtmd.mtmd_free)
        self._row_width = model.input_width
        self._has_places = bool(mtmd.mtmd_decode_use_mrope(handle))
        self.sees = bool(mtmd.mtmd_support_vision(handle))
        self.sound_rate = max(0, int(mtmd.mtmd_get_audio_sample_rate(handle)))
        """Samples per second, or 0 without sounds."""
        self._cut: tuple[str, _Chunks] | None = None
        """Digest and chunks of the item being encoded, cut once for all parts."""
        typical = [_LARGE] * self.sees + [SoundSize(self.sound_rate)] * bool(self.sound_rate)
        why = next(filter(None, (self.measure(size).why_not for size in typical)), None)
        if why is not None or not typical:
            self.close()
            why = why or "it supports neither vision nor sound"
            raise StartupError(f"The projector {path} does not fit {model.path}: {why}.")

    def close(self) -> None:
        self._forget_cut()
        super().close()

    def measure(self, size: MediaSize) -> MeasuredMedia:
        try:
            self._require(size)
            with _Chunks(self._mtmd, self.handle, size, None) as chunks:
                shape = tuple(self._shown(chunks, chunk) for chunk in chunks.all)
        except EncodingFailed as error:
            return MeasuredMedia(size, why_not=str(error))
        rows = [part.num_rows for part in shape if isinstance(part, MediaEmbeddings)]
        if isinstance(size, SoundSize) and max(rows) > _MOST_SOUND_ROWS:
            why = f"This model cannot hear {size.num_samples / self.sound_rate:,.1f} seconds at once."
            return MeasuredMedia(size, why_not=why)
        return MeasuredMedia(size, shape)

    def _require(self, size: MediaSize) -> None:
        if isinstance(size, PictureSize):
            if not self.sees:
                raise EncodingFailed(BLIND)
            if size.why_not:
                raise EncodingFailed(size.why_not)
            return
        if not self.sound_rate:
            raise EncodingFailed(DEAF)
        seconds = size.num_samples / self.sound_rate
        if not _LEAST_SOUND_S <= seconds <= MOST_SOUND_S:
            bounds = f"from {_LEAST_SOUND_S} to {MOST_SOUND_S:,} seconds"
            raise EncodingFailed(f"A sound may take {bounds}, and this one takes {seconds:,.3f}.")

    @property
    def most_whole_rows(self) -> int:
        sizes = (_LARGE, PictureSize(4096, 1024), PictureSize(1024, 4096), PictureSize(512, 512))
        parts = (part for size in sizes for part in self.measure(size).shape)
        return max(
            (part.num_rows for part in parts if isinstance(part, MediaEmbeddings) and part.is_whole),
            default=0,
        )

    def encode(self, item: MediaItem, part: int, encoding: _Encoding) -> EncodedRows | None:
        """Return None if given up. Raises `EncodingFailed`.

        Scaling and cutting run before the first turn.
        """
        chunks = self._cut_of(item)
        chunk = chunks.media[part]
        encoding.wait_for_turn()
        if encoding.is_over:
            return None
        self._encoding = encoding
        self._watch_time()
        log = native_log().cleared()
        code = self._mtmd.mtmd_encode_chunk(self.handle, chunk)
        if encoding.is_over:  # llama.cpp takes what was given up for a success
            return None
        if code != 0:
            raise EncodingFailed(f"It cannot be encoded: {log.cause() or f'code {code}'}.")
        encoded = EncodedRows(self._rows(chunk), self._places(chunk))
        if chunk is chunks.media[-1]:
            self._forget_cut()
        return encoded

    def _may_continue(self, _tensor: object, is_query: bool, _data: object) -> bool:
        """llama.cpp calls this before each node, to know if it must stop after it and if it may continue."""
        if is_query:
            self._nodes_left -= 1
            return self._nodes_left <= 0
        took_s = time.perf_counter() - self._since_s
        self._nodes = min(2 * self._nodes, 256) if took_s < _PAUSE_S / 2 else self._nodes
        self._nodes = max(self._nodes // 2, 1) if took_s > 2 * _PAUSE_S else self._nodes
        assert self._encoding is not None, "nothing is being encoded"
        self._encoding.pause()
        self._watch_time()
        return not self._encoding.is_over

    def _watch_time(self) -> None:
        self._nodes_left, self._since_s = self._nodes, time.perf_counter()

    def _cut_of(self, item: MediaItem) -> _Chunks:
        if self._cut is not None and self._cut[0] == item.digest:
            return self._cut[1]
        self._forget_cut()
        self._require(item.size)
        if isinstance(item, Sound) and not np.isfinite(np.frombuffer(item.content, "<f4")).all():
            raise EncodingFailed("The sound has samples that are not finite.")
        chunks = _Chunks(self._mtmd, self.handle, item.size, item.content)
        self._cut = item.digest, chunks
        return chunks

    def _forget_cut(self) -> None:
        if self._cut is not None:
            self._cut[1].close()
        self._cut = None

    def _shown(self, chunks: _Chunks, chunk: object) -> tuple[int, ...] | MediaEmbeddings:
        if not chunks.is_medium(chunk):
            return chunks.tokens(chunk)
        mtmd = self._mtmd
        num_rows = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        num_positions = int(mtmd.mtmd_input_chunk_get_n_pos(chunk))
        is_whole = bool(mtmd.mtmd_decode_use_non_causal(self.handle, chunk))
        return MediaEmbeddings(num_rows, num_positions, self._has_one_place(chunk), is_whole)

    def _has_one_place(self, chunk: object) -> bool:
        is_seen = self._mtmd.mtmd_input_chunk_get_tokens_image(chunk) is not None
        return self._has_places and is_seen

    def _rows(self, chunk: object) -> npt.NDArray[np.float32]:
        count = int(self._mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        pointer = self._mtmd.mtmd_get_output_embd(self.handle)
        rows = np.ctypeslib.as_array(pointer, (count, self._row_width)).copy()
        if not np.isfinite(rows).all():
            raise EncodingFailed("The encoder computed numbers that are not finite.")
        return rows

    def _places(self, chunk: object) -> npt.NDArray[np.int32]:
        count = int(self._mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        if not self._has_one_place(chunk):
            return np.tile(np.arange(count, dtype=np.int32), (4, 1))
        tokens = self._mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        places = [self._mtmd.mtmd_image_tokens_get_decoder_pos(tokens, 0, at) for at in range(count)]
        return np.array([[place.t, place.y, place.x, 0] for place in places], np.int32).T.copy()


class _Chunks(NativeObject):
    """Texts and parts to encode. Methods raise `EncodingFailed`."""

    def __init__(self, mtmd: Any, context: object, size: MediaSize, content: memoryview | None) -> None:
        """`content`: None for a placeholder of this size."""
        super().__init__(mtmd.mtmd_input_chunks_init(), mtmd.mtmd_input_chunks_free)
        self._mtmd = mtmd
        bitmap = _bitmap(mtmd, size, content)
        text = mtmd.mtmd_input_text(_MARKER, len(_MARKER), False, True)
        log = native_log().cleared()
        bitmaps = (ctypes.c_void_p * 1)(bitmap)
        code = mtmd.mtmd_tokenize(context, self.handle, ctypes.byref(text), bitmaps, 1)
        mtmd.mtmd_bitmap_free(bitmap)
        if code != 0:
            self.close()
            cause = log.cause() or f"code {code}"
            raise EncodingFailed(f"{size.words.capitalize()} cannot be taken: {cause}.")
        count = mtmd.mtmd_input_chunks_size(self.handle)
        self.all = [mtmd.mtmd_input_chunks_get(self.handle, at) for at in range(count)]
        self.media = [chunk for chunk in self.all if self.is_medium(chunk)]

    def is_medium(self, chunk: object) -> bool:
        kind = self._mtmd.mtmd_input_chunk_get_type(chunk)
        return bool(kind != self._mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT)

    def tokens(self, chunk: object) -> tuple[int, ...]:
        count = ctypes.c_size_t()
        tokens = self._mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
        found = tuple(int(tokens[at]) for at in range(count.value))
        if min(found, default=0) < 0:
            raise EncodingFailed(
                "the model's vocabulary lacks tokens that stand around its pictures or sounds"
            )
        return found


def _bitmap(mtmd: Any, size: MediaSize, content: memoryview | None) -> Any:
    data = None if content is None else np.frombuffer(content, np.uint8).ctypes
    if isinstance(size, PictureSize):
        pixels = None if data is None else data.data_as(ctypes.POINTER(ctypes.c_uint8))
        return mtmd.mtmd_bitmap_init(size.width, size.height, pixels)
    samples = None if data is None else data.data_as(ctypes.POINTER(ctypes.c_float))
    return mtmd.mtmd_bitmap_init_from_audio(size.num_samples, samples)


class RowStore:
    """Belongs to the engine's thread."""

    def __init__(self, projector: Projector) -> None:
        self._projector = projector
        self._rows: OrderedDict[RowsKey, EncodedRows] = OrderedDict()
        self._num_bytes = 0
        self._job: _Encoding | None = None
        self._leaving: _Encoding | None = None
        self.measure = projector.measure

    def get(self, key: RowsKey) -> EncodedRows | None:
        rows = self._rows.get(key)
        if rows is not None:
            self._rows.move_to_end(key)
        return rows

    def encode(self, item: MediaItem, part: int, seconds: float, *, wanted: Collection[RowsKey]) -> bool:
        """Compute for at most `seconds`, give up any other encoding, and return True when done. Raises
        `EncodingFailed`.

        `wanted`: rows in use, which are not evicted.
        """
        key = item.digest, part
        if self.get(key) is not None:
            return True
        if self._leaving is not None and not self._leaving.go_on(seconds):
            return False
        self._leaving = None
        self.give_up(unless=(key,))
        if self._leaving is not None:
            return False
        if self._job is None:
            self._job = _Encoding(self._projector, item, part)
        if not self._job.go_on(seconds):
            return False
        job, self._job = self._job, None
        rows = self._rows[key] = job.result()
        self._num_bytes += rows.values.nbytes
        for other in [one for one in self._rows if one != key and one not in wanted]:
            if self._num_bytes <= ROW_CACHE_BYTES:
                break
            self._num_bytes -= self._rows.pop(other).values.nbytes
        return True

    def give_up(self, *, unless: Collection[RowsKey] = ()) -> None:
        if self._job is not None and self._job.key not in unless:
            self._job.give_up()
            self._leaving, self._job = self._job, None

    def close(self) -> None:
        self.give_up()
        if self._leaving is not None:
            self._leaving.join()
        self._projector.close()
