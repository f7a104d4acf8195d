"""Tiny models of pictures and sounds, with every kind of projector and memory: answers equal those of
llama.cpp's own helpers, however the steps are cut."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from openai_cpu_server.contract.media import (
    DEAF,
    MediaEmbeddings,
    MediaItem,
    Picture,
    PictureSize,
    Sound,
    SoundSize,
    placed,
)
from openai_cpu_server.contract.messages import CancelRequest, EngineOptions, Scheduling
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.engine_client.supervisor import Supervisor
from openai_cpu_server.errors import InvalidRequest, StartupError
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.bindings import llama_cpp, mtmd_library
from openai_cpu_server.llama.gguf.encoders import why_deadly
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.reader.sounds import sound_pieces
from tests.architectures.plain import PlainLlama
from tests.architectures.test_architectures import ENGINE, running
from tests.engine.driver import Engine
from tests.fakes import SPECULATION
from tests.fuzz.sounds import FILES, tone, wav
from tests.llama.driver import make_request, repeated_interrupts, small_options
from tests.llama.odd_models import audio_projector
from tests.tiny_model import tiny_model_path, tiny_projector_path

SLOW = pytest.mark.slow

LENGTH, RATE = 8, 16_000
BEFORE, BEHIND = (1, *range(300, 400)), tuple(range(400, 480))
PromptParts = Sequence[Sequence[int] | MediaItem]


class Kind(NamedTuple):
    model: str
    projector: str
    width: int = 64  # of the rows that the projector makes
    has_audio: bool = False
    is_slow: bool = False  # another kind has the same memory and positions, with another projector


KINDS = {
    "slices": Kind("tiny", "idefics3", 256),
    "whole": Kind("tiny", "gemma3", 256, is_slow=True),
    "whole, windows": Kind("tiny-gemma3", "gemma3"),
    "one place": Kind("tiny-qwen2vl", "qwen2vl_merger"),
    "one place, newer": Kind("tiny-qwen2vl", "qwen3vl_merger", is_slow=True),
    "hybrid": Kind("tiny-lfm2", "lfm2", is_slow=True),
    "hybrid, one place, a head": Kind("tiny-qwen35-head", "qwen3vl_merger"),
    "sound": Kind("tiny", "ultravox", 256, has_audio=True),
    "sound, windows": Kind("tiny-gemma3", "voxtral", has_audio=True, is_slow=True),
    "sound, hybrid": Kind("tiny-lfm2", "voxtral", has_audio=True, is_slow=True),
    "sound and pictures": Kind("tiny-qwen2vl", "qwen3vl_merger+qwen3a", has_audio=True),
}
EACH = [pytest.param(kind, marks=[SLOW] * kind.is_slow, id=name) for name, kind in KINDS.items()]
VISION, AUDIO = EACH[:7], [EACH[7], EACH[10]]


def picture(width: int, height: int, seed: int = 0) -> Picture:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Picture.of(PictureSize(width, height), pixels.tobytes())


def sound(seconds: float, seed: int = 0) -> Sound:
    time_s = np.arange(int(seconds * RATE)) / RATE
    noise = np.random.default_rng(seed).normal(0, 0.05, len(time_s))
    tone = 0.5 * np.sin(2 * np.pi * (200 + 50 * seed + 100 * time_s) * time_s)
    return Sound.of((tone + noise).astype("<f4").tobytes())


@functools.cache
def files(kind: Kind) -> tuple[Path, Path]:
    return (
        tiny_model_path(shape=kind.model, sees=True),
        tiny_projector_path(kind.projector, rows_width=kind.width),
    )


def options(kind: Kind, **more: object) -> EngineOptions:
    model, projector = files(kind)
    more = {"kv_tokens": 2048, "cache_bytes": 2**24, "prefill_tokens": 64, "threads": 1, **more}
    return small_options(model, projector_path=str(projector), **more)


class MediaEngine(Engine):
    has_audio = False

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options, LlamaBackend.load(options, lambda fraction: None))
        self.prompts: dict[str, tuple[int, ...]] = {}

    def submit_parts(self, name: str, *parts: Sequence[int] | MediaItem, **more: object) -> None:
        items = [part for part in parts if isinstance(part, (Picture, Sound))]
        shapes = [self.backend.measure(item.size).shape for item in items]
        tokens, media = placed(items, shapes, [p for p in parts if not isinstance(p, (Picture, Sound))])
        self.prompts[name] = tokens
        self.submit(make_request(name, tokens, LENGTH, media_items=tuple(items), media=media, **more))

    def answer(self, name: str, *parts: Sequence[int] | MediaItem, **more: object) -> list[int]:
        self.submit_parts(name, *parts, **more)
        self.run()
        assert self.finish(name).is_good, self.finish(name)
        return self.tokens(name)

    @property
    def encoded_rows(self) -> dict[object, object]:
        """Rows of encoded media. After a test clears them, answers can only come from cells."""
        return self.backend._loaded.row_store._rows


@contextmanager
def open_engine(chosen: EngineOptions) -> Iterator[MediaEngine]:
    found = MediaEngine(chosen)
    try:
        yield found
    finally:
        found.backend.close()


@pytest.fixture(scope="module", params=EACH)
def engine(request: pytest.FixtureRequest) -> Iterator[MediaEngine]:
    with open_engine(options(request.param)) as engine:
        engine.has_audio = request.param.has_audio
        yield engine


only_kinds = functools.partial(pytest.mark.parametrize, "engine", indirect=True)


def test_answers_equal_those_of_llama_cpp_and_repeats_encode_nothing(engine: MediaEngine) -> None:
    small_one = picture(100, 50)
    prompts: dict[str, PromptParts] = {
        "one": (BEFORE, small_one, BEHIND),
        "two": (BEFORE, picture(300, 200, 1), (400,), small_one, BEHIND),
        "same size": (BEFORE, picture(100, 50, 2), BEHIND),
    }
    if engine.has_audio:
        prompts = {
            "in several parts": (BEFORE[:31], sound(31.0, 1), BEHIND[:30]),
            "two": (BEFORE[:31], sound(0.4), (400,), sound(0.4, 2), BEHIND[:30]),
        }
        if engine.backend.info.sees:
            prompts["both"] = (BEFORE[:31], small_one, (400,), sound(0.4), BEHIND[:30])
    with PlainLlama(Path(engine.options.model_path), Path(engine.options.projector_path or "")) as plain:
        expected = {
            name: plain.answer([x for p in parts for x in (p if isinstance(p, tuple) else [p])], LENGTH)
            for name, parts in prompts.items()
        }
    for name, parts in prompts.items():
        assert engine.answer(name, *parts) == expected[name].tokens, name
    engine.encoded_rows.clear()
    for name, parts in prompts.items():
        again = f"{name}, again"
        assert engine.answer(again, *parts) == expected[name].tokens
        assert engine.finish(again).cached_tokens == len(engine.prompts[again]) - 1
    assert not engine.encoded_rows


def test_conversations_that_share_media_share_their_cells(engine: MediaEngine) -> None:
    pictures, sounds = (picture(64, 64, 5), picture(300, 200, 6)), (sound(3.0, 5), sound(2.0, 6))
    first, second = sounds if engine.has_audio else pictures
    prompts: dict[str, PromptParts] = {
        "a": (BEFORE, first, BEHIND),
        "b": (BEFORE, first, BEHIND, second, (320, 321)),
        "c": (BEFORE, second, BEHIND),
        "d": ((1, 350), first, (400, 401)),
    }
    alone = {name: engine.answer(f"alone {name}", *parts) for name, parts in prompts.items()}
    for round_ in range(2):
        engine.encoded_rows.clear()
        for name, parts in prompts.items():
            priority = Priority.BATCH if name in "bc" else Priority.INTERACTIVE
            engine.submit_parts(f"{name} {round_}", *parts, priority=priority)
            engine.submit_parts(f"text {name} {round_}", (1, *range(360, 380)), priority=priority)
        engine.run()
        for name, tokens in alone.items():
            assert engine.tokens(f"{name} {round_}") == tokens, name


@pytest.mark.parametrize("kind", VISION)
def test_interrupted_steps_leave_no_trace(kind: Kind) -> None:
    hurried = Scheduling(preempt_threshold_ms=0.0, batch_stall_ms=2000.0)
    with open_engine(options(kind, scheduling=hurried, cache_bytes=0)) as engine:
        parts = (BEFORE, picture(300, 200, 1), tuple(range(360, 400)), picture(64, 64, 5), BEHIND)
        expected = engine.answer("alone", *parts)
        engine.submit_parts("batch", *parts, priority=Priority.BATCH)
        for number in range(40):
            with repeated_interrupts(
                engine.backend.interrupt, engine.backend._loaded.context, 1 + 20 * (number % 3)
            ):
                engine.step()
            if number % 5 == 0:
                engine.submit_parts(f"i{number}", (1, 350, 351 + number))
        engine.run()
        assert engine.tokens("batch") == expected
        assert engine.finish("batch").interruptions > 0


def test_a_head_drafts_behind_pictures() -> None:
    """The head has no rows for pictures, and begins after them."""
    kind, item = KINDS["hybrid, one place, a head"], picture(300, 200, 1)
    found = []
    for speculation in (SPECULATION["off"], SPECULATION["always"]):
        with open_engine(options(kind, **speculation)) as engine:
            found.append([engine.answer(str(n), BEFORE, item, (*BEHIND, *BEHIND[n:])) for n in range(3)])
            num_drafted = sum(engine.finish(str(n)).drafted_tokens for n in range(3))
    assert num_drafted > 0
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", VISION)
def test_a_cache_file_identifies_pictures_and_the_projector_of_their_rows(kind: Kind, tmp_path: Path) -> None:
    path, parts = tmp_path / "cache", (BEFORE, picture(300, 200, 1), BEHIND)
    chosen = options(kind, cache_file=str(path))
    with open_engine(chosen) as first:
        expected = first.answer("a", *parts)
        first.core.save_cache(str(path))
    with open_engine(chosen) as again:
        assert again.answer("b", *parts) == expected
        assert again.finish("b").cached_tokens == len(again.prompts["b"]) - 1
        assert not again.encoded_rows
    other = tmp_path / "other.gguf"
    shutil.copyfile(files(kind)[1], other)
    with open_engine(msgspec.structs.replace(chosen, projector_path=str(other))) as unfit:
        unfit.answer("c", *parts)
        assert unfit.finish("c").cached_tokens == 0, "another projector may make other rows"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("slices", marks=SLOW),
        "hybrid, one place, a head",
        "sound, hybrid",
        pytest.param("sound and pictures", marks=SLOW),
    ],
)
async def test_a_generation_continues_after_its_engine_is_killed(kind: str) -> None:
    """Run the real process in its sandbox, which also refuses an unsuitable picture or sound."""
    item, unfit, why, code = (
        (sound(9.0, 1), SoundSize(1), "seconds", "invalid_audio")
        if KINDS[kind].has_audio
        else (picture(300, 200, 1), PictureSize(1, 5000), "narrow", "invalid_image")
    )
    async with running(EngineClient(Supervisor(ENGINE, options(KINDS[kind])), max_queue=9)) as engine:
        (shape,) = await engine.shapes([item.size])
        tokens, media = placed([item], [shape], [BEFORE, BEHIND])
        answers = []
        for name, is_killed in (("a", False), ("b", True)):
            more = {"media_items": (item,), "media": media, "cache_namespace": name}
            request = make_request(f"{name}/0", tokens, 40, **more)
            output = list[int]()
            async with engine.generate([request]) as generation:
                async for event in generation:
                    output += event.tokens
                    if is_killed and len(output) >= 3:
                        is_killed = False
                        os.kill(engine.engine_pid, signal.SIGKILL)
            answers.append(output)
        assert answers[0] == answers[1]
        with pytest.raises(InvalidRequest, match=why) as refused:
            await engine.shapes([unfit])
        assert refused.value.code == code


def test_encoding_for_a_cancelled_request_stops() -> None:
    """An encoder of a real size takes seconds; a cancellation stops it within one of its operations."""
    model, _ = files(KINDS["whole"])
    projector = tiny_projector_path("gemma3", rows_width=256, shape="siglip-base")
    chosen = small_options(
        model, projector_path=str(projector), scheduling=Scheduling(preempt_threshold_ms=10.0)
    )
    with open_engine(chosen) as engine:
        engine.submit_parts("first", BEFORE, picture(600, 600), BEHIND)
        for _ in range(3):
            assert not engine.encoded_rows, "one step encodes a slice only"
            engine.step()
        engine.core.handle(CancelRequest("first"))
        assert engine.answer("text", BEFORE)
        assert not engine.encoded_rows


@only_kinds(VISION)
def test_pictures_of_any_size_have_rows_and_the_encoder_makes_as_many(engine: MediaEngine) -> None:
    for width, height in ((1, 1), (7, 700), (700, 7), (17, 31), (1024, 1024)):
        shape = engine.backend.measure(PictureSize(width, height))
        assert not shape.why_not, shape
        assert sum(part.num_rows for part in shape.shape if isinstance(part, MediaEmbeddings)) > 0
        assert len(engine.answer(f"{width}x{height}", (1, 350), picture(width, height), BEHIND)) == LENGTH
    assert "narrow" in engine.backend.measure(PictureSize(1, 700)).why_not


@pytest.mark.parametrize(
    ("projector", "cause"),
    [
        (("gemma3", 128), "mismatch"),
        (("idefics3", 256), "vocabulary"),
        (b"GGUF nonsense", "projector"),
        (None, "does not exist"),
    ],
)
def test_a_projector_that_does_not_fit_the_model_is_refused_at_start(
    projector: tuple[str, int] | bytes | None, cause: str, tmp_path: Path
) -> None:
    path = tmp_path / "mmproj.gguf"
    if isinstance(projector, bytes):
        path.write_bytes(projector)
    elif projector is not None:
        path = tiny_projector_path(projector[0], rows_width=projector[1])
    with pytest.raises(StartupError, match=cause):
        LlamaBackend.load(small_options(tiny_model_path(), projector_path=str(path)), lambda fraction: None)


@only_kinds(AUDIO)
@pytest.mark.parametrize(
    ("samples", "why"),
    [
        (np.full(RATE, np.nan), "not finite"),
        (np.full(RATE, np.inf), "not finite"),
        (np.full(RATE, 1e30), "not finite"),
        (np.zeros(RATE), ""),
    ],
    ids=["nan", "inf", "huge", "silent"],
)
def test_strange_samples_do_not_harm_other_requests(engine: MediaEngine, samples: object, why: str) -> None:
    strange = Sound.of(np.asarray(samples, "<f4").tobytes())
    name = f"strange {strange.digest}"
    engine.submit_parts(name, BEFORE, strange, BEHIND)
    engine.submit_parts(f"beside {name}", BEFORE)
    engine.run()
    assert engine.finish(f"beside {name}").is_good
    finish = engine.finish(name)
    assert (why in str(finish)) if why else finish.is_good


@only_kinds(AUDIO)
def test_sounds_of_any_length_have_rows_or_a_reason(engine: MediaEngine) -> None:
    backend = engine.backend
    for num_samples in (1_600, 1_601, 15_999, 480_000, 480_001):
        shape = backend.measure(SoundSize(num_samples)).shape
        assert sum(part.num_rows for part in shape if isinstance(part, MediaEmbeddings)) > 0
    for num_samples in (0, 1, 2, 1_599, 1800 * RATE + 1, 2**40):
        assert "0.1 to 1,800 seconds" in backend.measure(SoundSize(num_samples)).why_not


def test_a_model_of_pictures_takes_no_sound() -> None:
    with open_engine(options(KINDS["slices"])) as engine:
        assert engine.backend.measure(SoundSize(RATE)).why_not == DEAF
        assert not engine.backend.info.hears


@pytest.fixture(scope="module")
def helper() -> Iterator[Callable[[bytes], npt.NDArray[np.float32]]]:
    mtmd, (model, projector) = mtmd_library(), files(KINDS["sound"])
    model_handle = llama_cpp.llama_model_load_from_file(
        str(model).encode(), llama_cpp.llama_model_default_params()
    )
    params = mtmd.mtmd_context_params_default()
    params.use_gpu = params.warmup = False
    context = mtmd.mtmd_init_from_file(str(projector).encode(), model_handle, params)

    def samples(data: bytes) -> npt.NDArray[np.float32]:
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        bitmap = mtmd.mtmd_helper_bitmap_init_from_buf(context, buffer, len(data), False)
        raw = ctypes.string_at(mtmd.mtmd_bitmap_get_data(bitmap), mtmd.mtmd_bitmap_get_n_bytes(bitmap))
        mtmd.mtmd_bitmap_free(bitmap)
        return np.frombuffer(raw, "<f4")

    yield samples
    mtmd.mtmd_free(context)
    llama_cpp.llama_model_free(model_handle)


def decoded_samples(data: bytes) -> npt.NDArray[np.float32]:
    (found,) = sound_pieces(data, rate=RATE, most_samples=RATE, most_at_once=0)
    return np.frombuffer(found.content, "<f4")


SIDES = np.stack([tone(0.5, rate=44_100), tone(0.5, 660, rate=44_100)], axis=1)


@pytest.mark.parametrize(
    "data",
    [
        wav(tone(0.5)),
        wav(tone(0.5, rate=8000), rate=8000),
        wav(tone(0.5, rate=48_000), rate=48_000),
        wav(SIDES.ravel(), rate=44_100, kind="<f4", channels=2),
        wav(3 * tone(0.5), kind="<f4"),
        FILES["flac"],
        FILES["mp3"],
    ],
    ids=["wav", "8 kHz", "48 kHz", "stereo floats", "beyond 1", "flac", "mp3"],
)
def test_decoding_equals_llama_cpps(helper: Callable[[bytes], npt.NDArray[np.float32]], data: bytes) -> None:
    """llama.cpp's helper may append a zero to the samples."""
    theirs, ours = helper(data), decoded_samples(data)
    assert 0 <= len(theirs) - len(ours) <= 1
    assert np.abs(theirs[: len(ours)] - ours).max() < 1e-4
    assert np.abs(ours).max() > 0.4


def test_ogg_vorbis_is_decoded_though_llama_cpp_cannot() -> None:
    assert np.corrcoef(decoded_samples(FILES["ogg"]), tone(0.4))[0, 1] > 0.98


@pytest.mark.parametrize(
    ("kind", "width", "stack_factor", "num_positions", "why"),
    [
        *(("ultravox", width, 8, 1500, None) for width in (1280, 40)),
        ("ultravox", 768, 8, 1500, "makes 188 where it expects 187"),
        *(("ultravox", width, 8, 1500, "makes 188") for width in (32, 48, 24)),
        *(("voxtral", width, 4, 1500, None) for width in (1280, 40)),
        *(("voxtral", width, 4, 1500, "makes 188") for width in (768, 24)),
        ("meralion", 1280, 15, 1500, None),
        ("glma", 1280, 4, 1500, None),
        ("ultravox", 1280, 0, 1500, None),
        ("qwen2a", 768, 8, 1500, None),
        ("qwen2a", 1280, 1, 1000, "has 1000 places, and it wants 1500"),
        ("qwen3a", 1280, 1, 1000, None),
        ("unheard of", 32, 8, 10, None),
    ],
)
def test_a_projector_that_crashes_llama_cpp_is_refused_at_start(
    tmp_path: Path, kind: str, width: int, stack_factor: int, num_positions: int, why: str | None
) -> None:
    """llama.cpp aborts at exactly these widths: measured for Ultravox and Voxtral."""
    path = audio_projector(tmp_path / "mmproj.gguf", kind, width, stack_factor, num_positions)
    found = why_deadly(GgufHeader(path))
    assert found is None if why is None else why in (found or "")
    if why is not None:
        with pytest.raises(StartupError, match=rf"{path} .* crashes with any sound .*{why}"):
            LlamaBackend.load(
                small_options(tiny_model_path(), projector_path=str(path)), lambda fraction: None
            )
