"""Tiny models that hear, as `test_pictures.py` has those that see: what they answer is what llama.cpp's own
helpers make of the same files."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from openai_cpu_server.contract.media import DEAF, MediaRows, Sound, SoundSize
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.bindings import llama_cpp, mtmd_library
from openai_cpu_server.llama.gguf.encoders import why_deadly
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.reader.decoders import decoded_sounds
from tests.fuzz.sounds import FILES, tone, wav
from tests.llama.driver import small
from tests.llama.odd_models import hearing_head
from tests.llama.test_pictures import (
    Kind,
    Sensing,
    files,
    goes_on_when_killed,
    options,
    picture,
    sensing,
)
from tests.tiny_model import tiny_model_path

pytestmark = pytest.mark.native

RATE = 16_000
BEFORE, BEHIND = (1, *range(300, 330)), tuple(range(400, 430))
BOTH, SELDOM = "sees, too", ("windows", "hybrid")
KINDS = {
    "attention": Kind("tiny", "ultravox", 256),
    "windows": Kind("tiny-gemma3", "voxtral"),
    "hybrid": Kind("tiny-lfm2", "voxtral"),
    BOTH: Kind("tiny-qwen2vl", "qwen3vl_merger+qwen3a"),
}


def sound(seconds: float, seed: int = 0) -> Sound:
    """A tone that rises, in noise."""
    time_s = np.arange(int(seconds * RATE)) / RATE
    noise = np.random.default_rng(seed).normal(0, 0.05, len(time_s))
    tone = 0.5 * np.sin(2 * np.pi * (200 + 50 * seed + 100 * time_s) * time_s)
    return Sound.of((tone + noise).astype("<f4").tobytes())


@pytest.fixture(
    scope="module",
    params=[
        "attention",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("windows", "hybrid")),
        BOTH,
    ],
)
def hearing(request: pytest.FixtureRequest) -> Iterator[Sensing]:
    with sensing(options(KINDS[request.param])) as hearing:
        yield hearing


only = partial(pytest.mark.parametrize, "hearing", indirect=True)


def test_answers_are_llama_cpps_and_the_second_time_nothing_is_encoded(hearing: Sensing) -> None:
    """One of these has several parts."""
    stories = {
        "long": (BEFORE, sound(31.0, 1), BEHIND),
        "two": (BEFORE, sound(0.4), (400,), sound(0.4, 2), BEHIND),
    }
    if hearing.backend.info.sees:
        stories["seen, too"] = (BEFORE, picture(100, 50), (400,), sound(0.4), BEHIND)
    hearing.is_as_plain(stories)


@only(["attention", BOTH])
def test_conversations_that_share_sounds_share_their_cells(hearing: Sensing) -> None:
    first, second = sound(3.0, 5), sound(2.0, 6)
    hearing.shares_cells(
        {
            "a": (BEFORE, first, BEHIND),
            "b": (BEFORE, first, BEHIND, second, (320, 321)),
            "c": (BEFORE, second, BEHIND),
        }
    )


@only(["attention", BOTH])
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
def test_a_sound_of_strange_samples_harms_nobody_else(hearing: Sensing, samples: object, why: str) -> None:
    strange = Sound.of(np.asarray(samples, "<f4").tobytes())
    name = f"strange {strange.digest}"
    hearing.ask(name, BEFORE, strange, BEHIND)
    hearing.ask(f"beside {name}", BEFORE)
    hearing.run()
    assert hearing.finishes[f"beside {name}"].is_good
    finish = hearing.finishes[name]
    assert (why in str(finish)) if why else finish.is_good


@only(["attention", BOTH])
def test_sounds_of_any_length_have_rows_or_a_reason(hearing: Sensing) -> None:
    backend = hearing.backend
    for num_samples in (1_600, 1_601, 15_999, 480_000, 480_001):
        shape = backend.measure(SoundSize(num_samples)).shape
        assert sum(part.num_rows for part in shape if isinstance(part, MediaRows)) > 0
    for num_samples in (0, 1, 2, 1_599, 1800 * RATE + 1, 2**40):
        assert "0.1 to 1,800 seconds" in backend.measure(SoundSize(num_samples)).why_not


def test_a_model_that_only_sees_takes_no_sound() -> None:
    with sensing(options(Kind("tiny", "idefics3", 256))) as seeing:
        assert seeing.backend.measure(SoundSize(RATE)).why_not == DEAF
        assert not seeing.backend.info.hears


@pytest.fixture(scope="module")
def helper() -> Iterator[Callable[[bytes], npt.NDArray[np.float32]]]:
    """llama.cpp's own decoder."""
    mtmd, (model, projector) = mtmd_library(), files(KINDS["attention"])
    loaded = llama_cpp.llama_model_load_from_file(str(model).encode(), llama_cpp.llama_model_default_params())
    params = mtmd.mtmd_context_params_default()
    params.use_gpu = params.warmup = False
    context = mtmd.mtmd_init_from_file(str(projector).encode(), loaded, params)

    def samples(data: bytes) -> npt.NDArray[np.float32]:
        held = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        bitmap = mtmd.mtmd_helper_bitmap_init_from_buf(context, held, len(data), False)
        raw = ctypes.string_at(mtmd.mtmd_bitmap_get_data(bitmap), mtmd.mtmd_bitmap_get_n_bytes(bitmap))
        mtmd.mtmd_bitmap_free(bitmap)
        return np.frombuffer(raw, "<f4")

    yield samples
    mtmd.mtmd_free(context)
    llama_cpp.llama_model_free(loaded)


def decoded_samples(data: bytes) -> npt.NDArray[np.float32]:
    (found,) = decoded_sounds(data, rate=RATE, most_samples=RATE, most_at_once=0)
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
def test_files_are_decoded_as_llama_cpp_does(
    helper: Callable[[bytes], npt.NDArray[np.float32]], data: bytes
) -> None:
    """It may put a zero behind the last sample."""
    theirs, ours = helper(data), decoded_samples(data)
    assert 0 <= len(theirs) - len(ours) <= 1
    assert np.abs(theirs[: len(ours)] - ours).max() < 1e-4
    assert np.abs(ours).max() > 0.4


def test_ogg_vorbis_is_decoded_and_llama_cpp_knows_it_not() -> None:
    assert np.corrcoef(decoded_samples(FILES["ogg"]), tone(0.4))[0, 1] > 0.98


@pytest.mark.parametrize(
    ("kind", "width", "stacked", "places", "why"),
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
def test_a_projector_that_llama_cpp_dies_of_is_a_line_at_start(
    tmp_path: Path, kind: str, width: int, stacked: int, places: int, why: str | None
) -> None:
    """Those of Ultravox and Voxtral were tried: it aborts with just these widths."""
    path = hearing_head(tmp_path / "mmproj.gguf", kind, width, stacked, places)
    found = why_deadly(GgufHeader(path))
    assert found is None if why is None else why in (found or "")
    if why is not None:
        with pytest.raises(StartupError, match=rf"{path} .* dies of any sound .*{why}"):
            LlamaBackend.load(small(tiny_model_path(), projector_path=str(path)), lambda fraction: None)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["hybrid", pytest.param(BOTH, marks=pytest.mark.slow)])
async def test_a_killed_engine_goes_on_with_sounds(kind: str) -> None:
    await goes_on_when_killed(KINDS[kind], sound(9.0, 1), SoundSize(1), "seconds", "invalid_audio")
