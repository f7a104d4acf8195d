"""What a model sees with: llama.cpp's libmtmd, which makes rows of pictures in front of the model.

An encoder takes seconds for a picture. It computes in a thread of its own while the engine's thread waits
for it: so they share the cores by turns, and streams go on between two slices of a picture. One operation may
take longer than a turn (attention over 4,096 patches a second): what is left of it when the turn is over goes
on with the lowest priority that Linux has, with what the steps leave of the cores.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from openai_cpu_server.contract.media import MeasuredPicture, MediaRows, Picture, PictureSize
from openai_cpu_server.errors import ServerError, StartupError
from openai_cpu_server.llama.bindings import llama_cpp, mtmd_library
from openai_cpu_server.llama.model.kv_size import KEPT_ROWS_BYTES
from openai_cpu_server.llama.model.model import Model
from openai_cpu_server.llama.model.native import NativeObject, native_log

_MARKER = b"<__media__>"
_LARGE = PictureSize(2048, 2048)
_MOST_TIMES = 100
"""A picture is at most so many times as long on one side as on the other: scaled to what encoders take, the
shorter one would be nothing."""
_PAUSE_S = 0.01
"""The encoder may be paused about so often. It computes some nodes of its graph at a time, and each time as
many more or fewer."""


class EncodingFailed(ServerError):
    """A picture cannot be made rows."""


class EncodedRows(NamedTuple):
    """The rows of one part of a picture."""

    values: npt.NDArray[np.float32]
    """(rows, width of the model's input)."""
    places: npt.NDArray[np.int32]
    """(4, rows): time, y and x of each row, from the first position on, and 0; where a row has one position,
    its number."""


RowsKey = tuple[str, int]
"""A picture's digest, and the part."""


class _Turns:
    """Lets the encoder's thread compute by turns, and leaves it none between them but for the rest of an
    operation."""

    def __init__(self) -> None:
        self._may_go = threading.Semaphore(0)
        self._waits = threading.Event()
        """The encoder wants its next turn, or has ended."""
        self._until_s = 0.0
        self.is_done = False
        self.is_over = False
        """Nobody wants what it computes."""

    # -- the engine's thread -----------------------------------------------------------------------------

    def give(self, seconds: float) -> None:
        """Returns when the turn is over, or the encoder has ended."""
        self._until_s = time.perf_counter() + seconds
        if self._waits.is_set() and not self.is_done:
            self._waits.clear()
            self._may_go.release()
        self._waits.wait(seconds)

    def take_back(self) -> None:
        """There are no more: it ends behind the operation that it has begun."""
        self.is_over = True
        self._waits.clear()
        self._may_go.release()

    # -- the encoder's -----------------------------------------------------------------------------------

    def begin(self) -> None:
        self._waits.set()
        self._may_go.acquire()

    def pause(self) -> None:
        """Waits for the next turn if this one is over."""
        if time.perf_counter() >= self._until_s and not self.is_over:
            self._waits.set()
            self._may_go.acquire()

    def end(self) -> None:
        self.is_done = True
        self._waits.set()


class _Pace:
    """How many nodes of a graph to compute before the next look at the time."""

    def __init__(self) -> None:
        self._turns = _Turns()
        self._nodes = 8
        self._left = self._nodes
        self._since_s = 0.0

    def observe(self, _tensor: object, is_asked: bool, _data: object) -> bool:
        """llama.cpp asks of each node whether it is to stop behind it; and then, whether to go on."""
        if is_asked:
            self._left -= 1
            return self._left <= 0
        took_s = time.perf_counter() - self._since_s
        self._nodes = min(2 * self._nodes, 256) if took_s < _PAUSE_S / 2 else self._nodes
        self._nodes = max(self._nodes // 2, 1) if took_s > 2 * _PAUSE_S else self._nodes
        self._turns.pause()
        self._restart()
        return not self._turns.is_over

    def begin(self, turns: _Turns) -> None:
        self._turns = turns
        self._restart()

    def _restart(self) -> None:
        self._left, self._since_s = self._nodes, time.perf_counter()


class Projector(NativeObject):
    """Owns an `mtmd_context`. One thread at a time may encode; any may measure."""

    def __init__(self, path: Path, model: Model, *, threads: int, flash_attention: bool) -> None:
        """`model` must outlive it. Raises `StartupError`."""
        self._mtmd = mtmd = mtmd_library()
        log = native_log().cleared()
        log.listen_to(mtmd.mtmd_log_set)
        self._pace = _Pace()
        self._observe = llama_cpp.ggml_backend_sched_eval_callback(self._pace.observe)
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
        self._path = path
        self._row_width = model.input_width
        self._has_places = bool(mtmd.mtmd_decode_use_mrope(handle))
        self.is_whole = bool(mtmd.mtmd_decode_use_non_causal(handle, None))
        """Rows of a picture attend to all of them."""
        if (why := self._why_not()) is not None:
            self.close()
            raise StartupError(f"The projector {path} does not go with {model.path}: {why}.")

    def _why_not(self) -> str | None:
        if not self._mtmd.mtmd_support_vision(self.handle):
            return "it sees nothing"
        return self.measure(_LARGE).why_not or None

    def measure(self, size: PictureSize) -> MeasuredPicture:
        """What stands in a prompt for a picture of this size."""
        if max(size.width, size.height) > _MOST_TIMES * min(size.width, size.height):
            what = f"{size.width} x {size.height} pixels"
            return MeasuredPicture(size, why_not=f"A picture of {what} is too narrow to be scaled.")
        try:
            with self._chunks(size, None) as chunks:
                return MeasuredPicture(size, tuple(map(self._shown, chunks)))
        except EncodingFailed as error:
            return MeasuredPicture(size, why_not=str(error))

    @property
    def most_rows(self) -> int:
        """Rows of one part of a large picture, or more."""
        most = 0
        for size in (_LARGE, PictureSize(4096, 1024), PictureSize(1024, 4096), PictureSize(512, 512)):
            shape = self.measure(size).shape
            most = max([most, *(piece.num_rows for piece in shape if isinstance(piece, MediaRows))])
        return most

    def encode(self, picture: Picture, part: int, turns: _Turns) -> EncodedRows | None:
        """The rows of one part of a picture; None: its turns were taken back. Raises `EncodingFailed`.

        It begins without a turn, to scale the picture and cut it, and ends with one.
        """
        with self._chunks(picture.size, picture.rgb) as chunks:
            seen = [chunk for chunk in chunks if self._is_seen(chunk)]
            turns.begin()
            if turns.is_over:
                return None
            self._pace.begin(turns)
            log = native_log().cleared()
            code = self._mtmd.mtmd_encode_chunk(self.handle, seen[part])
            if turns.is_over:  # llama.cpp takes what was given up for a success
                return None
            if code != 0:
                raise EncodingFailed(f"The picture cannot be encoded: {log.cause() or f'code {code}'}.")
            return EncodedRows(self._rows(seen[part]), self._places(seen[part]))

    @contextmanager
    def _chunks(self, size: PictureSize, rgb: bytes | None) -> Iterator[list[object]]:
        """Without bytes it is a placeholder, of which only the size counts."""
        mtmd = self._mtmd
        pixels = None if rgb is None else np.frombuffer(rgb, np.uint8)
        data = None if pixels is None else pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap = mtmd.mtmd_bitmap_init(size.width, size.height, data)
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            text = mtmd.mtmd_input_text(_MARKER, len(_MARKER), False, True)
            bitmaps = (ctypes.c_void_p * 1)(bitmap)
            log = native_log().cleared()
            code = mtmd.mtmd_tokenize(self.handle, chunks, ctypes.byref(text), bitmaps, 1)
            if code != 0:
                what = f"A picture of {size.width} x {size.height} pixels cannot be taken"
                raise EncodingFailed(f"{what}: {log.cause() or f'code {code}'}.")
            count = mtmd.mtmd_input_chunks_size(chunks)
            yield [mtmd.mtmd_input_chunks_get(chunks, at) for at in range(count)]
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(bitmap)

    def _is_seen(self, chunk: object) -> bool:
        kind = self._mtmd.mtmd_input_chunk_get_type(chunk)
        return bool(kind != self._mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT)

    def _shown(self, chunk: object) -> tuple[int, ...] | MediaRows:
        mtmd = self._mtmd
        if self._is_seen(chunk):
            num_rows = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
            num_positions = int(mtmd.mtmd_input_chunk_get_n_pos(chunk))
            return MediaRows(num_rows, num_positions, self._has_places, self.is_whole)
        count = ctypes.c_size_t()
        tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
        found = tuple(int(tokens[at]) for at in range(count.value))
        if min(found, default=0) < 0:
            raise EncodingFailed("the model's vocabulary lacks tokens that stand around its pictures")
        return found

    def _rows(self, chunk: object) -> npt.NDArray[np.float32]:
        count = int(self._mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        pointer = self._mtmd.mtmd_get_output_embd(self.handle)
        rows = np.ctypeslib.as_array(pointer, (count, self._row_width)).copy()
        if not np.isfinite(rows).all():
            raise EncodingFailed("The encoder computes numbers that are not finite.")
        return rows

    def _places(self, chunk: object) -> npt.NDArray[np.int32]:
        count = int(self._mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        if not self._has_places:
            return np.tile(np.arange(count, dtype=np.int32), (4, 1))
        tokens = self._mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        places = [self._mtmd.mtmd_image_tokens_get_decoder_pos(tokens, 0, at) for at in range(count)]
        return np.array([[one.t, one.y, one.x, 0] for one in places], np.int32).T.copy()


class PictureRows:
    """The rows of pictures that were encoded last, and the one that is being encoded.

    Not thread-safe: it belongs to the engine's thread, which waits while the encoder computes.
    """

    def __init__(self, projector: Projector) -> None:
        self._projector = projector
        self._known: OrderedDict[RowsKey, EncodedRows] = OrderedDict()
        self._num_bytes = 0
        self._job: _Job | None = None
        self._leaving: _Job | None = None
        """It was given up, and is about to end."""
        self.measure = projector.measure

    def get(self, key: RowsKey) -> EncodedRows | None:
        """None: they are to be encoded."""
        rows = self._known.get(key)
        if rows is not None:
            self._known.move_to_end(key)
        return rows

    def encode(self, picture: Picture, part: int, seconds: float, *, kept: Collection[RowsKey]) -> bool:
        """Go on with this part of a picture for so long; True: it is done. What else was being encoded is
        given up. `kept`: what is in use. Raises `EncodingFailed`."""
        key = picture.digest, part
        if self.get(key) is not None:
            return True
        if self._leaving is not None and not self._leaving.go_on(seconds):
            return False
        self._leaving = None
        self.give_up(unless=(key,))
        if self._leaving is not None:
            return False
        if self._job is None:
            self._job = _Job(self._projector, picture, part)
        if not self._job.go_on(seconds):
            return False
        job, self._job = self._job, None
        self._keep(key, job.result(), kept)
        return True

    def give_up(self, *, unless: Collection[RowsKey] = ()) -> None:
        """Nobody wants what is being encoded, unless it is one of these."""
        if self._job is not None and self._job.key not in unless:
            self._job.give_up()
            self._leaving, self._job = self._job, None

    def close(self) -> None:
        self.give_up()
        if self._leaving is not None:
            self._leaving.join()
        self._projector.close()

    def _keep(self, key: RowsKey, rows: EncodedRows, kept: Collection[RowsKey]) -> None:
        self._known[key] = rows
        self._num_bytes += rows.values.nbytes
        for other in [one for one in self._known if one != key and one not in kept]:
            if self._num_bytes <= KEPT_ROWS_BYTES:
                break
            self._num_bytes -= self._known.pop(other).values.nbytes


class _Job:
    """One part of a picture, being encoded in a thread of its own."""

    def __init__(self, projector: Projector, picture: Picture, part: int) -> None:
        self.key = picture.digest, part
        self._turns = _Turns()
        self.give_up = self._turns.take_back
        self._rows: EncodedRows | None = None
        self._error: BaseException | None = None
        arguments = (projector, picture, part)
        self._thread = threading.Thread(target=self._work, args=arguments, name="encode", daemon=True)
        self._thread.start()
        self.join = self._thread.join

    def go_on(self, seconds: float) -> bool:
        """True: it has ended, one way or the other."""
        self._turns.give(seconds)
        return self._turns.is_done

    def result(self) -> EncodedRows:
        self._thread.join()
        if self._error is not None:
            raise EncodingFailed(str(self._error)) from self._error
        assert self._rows is not None, "it was given up"
        return self._rows

    def _work(self, projector: Projector, picture: Picture, part: int) -> None:
        # The threads that compute with this one are begun by it, and inherit that.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        try:
            self._rows = projector.encode(picture, part, self._turns)
        except BaseException as error:
            self._error = error
        finally:
            self._turns.end()
