"""Sounds of browsers and phones, and long ones in pieces."""

from __future__ import annotations

import io
from collections.abc import Sequence

import av
import numpy as np
import pytest

from openai_cpu_server.contract.media import Sound
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.reader import messages as wire
from openai_cpu_server.reader.process import ReaderWorker
from openai_cpu_server.reader.sounds import sound_pieces
from tests.fuzz.sounds import FILES, RATE, mp3_frames, oddities, tone, wav

HERTZ = 440


def encoded(form: str, codec: str, rate: int) -> bytes:
    """Return a tone of one second."""
    file = io.BytesIO()
    samples = tone(1, HERTZ, rate=rate).astype(np.float32)
    frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
    frame.sample_rate = rate
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.layout = "mono"
        context = stream.codec_context
        size = context.frame_size or 1024
        sampler = av.AudioResampler(context.format.name, "mono", rate, frame_size=size)
        for piece in (*sampler.resample(frame), *sampler.resample(None)):
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    return file.getvalue()


def length_and_pitch(data: bytes) -> tuple[float, int]:
    """Decode a sound. Return its seconds, and its loudest frequency in hertz."""
    (sound,) = sound_pieces(data, rate=RATE, most_samples=100 * RATE, most_at_once=0)
    samples = np.frombuffer(sound.content, "<f4")
    spectrum = np.abs(np.fft.rfft(samples))
    return len(samples) / RATE, round(float(spectrum.argmax()) * RATE / len(samples))


@pytest.mark.parametrize(
    ("form", "codec", "rate"),
    [
        ("webm", "libopus", 48_000),
        ("ogg", "libopus", 48_000),
        ("ipod", "aac", 44_100),
        ("mp4", "aac", 44_100),
        ("adts", "aac", 44_100),
        ("amr", "libopencore_amrnb", 8_000),
        ("3gp", "libopencore_amrnb", 8_000),
        ("flac", "flac", 44_100),
        ("mp3", "libmp3lame", 44_100),
        ("aiff", "pcm_s16be", 44_100),
        ("caf", "alac", 44_100),
        ("wav", "pcm_mulaw", 8_000),
    ],
)
def test_sounds_of_browsers_and_phones_are_decoded(form: str, codec: str, rate: int) -> None:
    seconds, hertz = length_and_pitch(encoded(form, codec, rate))
    assert seconds == pytest.approx(1, abs=0.1)
    assert hertz == pytest.approx(HERTZ, abs=5)


@pytest.mark.parametrize("length", [0, 0xFFFFFFFF, 0x7FFFFFFF])
def test_a_wav_file_of_a_pipe_is_decoded_to_its_end(length: int) -> None:
    data = wav(tone(1))
    assert length_and_pitch(data[:40] + length.to_bytes(4, "little") + data[44:]) == (1, HERTZ)


@pytest.mark.parametrize(
    "data",
    [
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n",
        b"ffconcat version 1.0\nfile '/etc/hostname'\n",
        b"\x1aE\xdf\xa3 and nothing more",
        b"Listen!",
        b"",
    ],
    ids=["a list", "another list", "half a header", "text", "nothing"],
)
def test_a_file_that_is_not_a_sound_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a sound of a known type") as refusal:
        length_and_pitch(data)
    assert refusal.value.code == "invalid_audio"


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in oddities()])
def test_an_odd_sound_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        length_and_pitch(data)
    assert refusal.value.code == "invalid_audio"


def test_a_rate_at_which_a_frame_lasts_for_hours_is_refused_before_it_is_resampled() -> None:
    data = encoded("aiff", "pcm_s16be", 44_100)
    rate = data.index(b"COMM") + 16
    with pytest.raises(InvalidRequest, match="1 samples a second, and needs at least 1000"):
        length_and_pitch(data[:rate] + b"\x3f\xff\x80".ljust(10, b"\0") + data[rate + 10 :])


@pytest.mark.parametrize(
    "data",
    [
        wav(np.zeros(8 * 192_000), rate=192_000, channels=8),
        b"#!AMR\n" + b"\x7c" * 100,
    ],
    ids=["channels", "empty packets"],
)
def test_a_sound_that_costs_more_than_its_length_is_refused_before_its_end(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="more computing than 1 seconds") as refusal:
        list(sound_pieces(data, rate=RATE, most_samples=RATE, most_at_once=0))
    assert refusal.value.code == "audio_too_large"


def test_a_film_without_sound_is_refused() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 32
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(InvalidRequest, match="there is no sound in it"):
        length_and_pitch(file.getvalue())


def opened(worker: ReaderWorker, data: bytes, first: int) -> wire.SoundOpened | None:
    result = worker.do(wire.OpenSound(data, b"digest", RATE, 10_000 * RATE, 30 * RATE, first))
    assert result is None or isinstance(result, wire.SoundOpened)
    return result


def digests(pieces: Sequence[Sound]) -> list[str]:
    return [piece.digest for piece in pieces]


def test_a_long_sound_is_opened_in_several_pieces_of_work_by_one_process_or_by_several() -> None:
    noise = np.random.default_rng(1).normal(0, 0.1, 300 * 8_000).clip(-1, 1)
    data = wav(noise, rate=8_000)
    whole = digests([*sound_pieces(data, rate=RATE, most_samples=1_000 * RATE, most_at_once=30 * RATE)])
    worker = ReaderWorker()
    first = opened(worker, data, 0)
    assert first is not None
    assert not first.is_last
    second = opened(worker, b"", len(first.pieces))
    assert opened(ReaderWorker(), b"", len(first.pieces)) is None
    elsewhere = opened(ReaderWorker(), data, len(first.pieces))
    assert second is not None
    assert elsewhere is not None
    assert second.is_last
    assert digests(first.pieces) + digests(second.pieces) == whole
    assert digests(elsewhere.pieces) == digests(second.pieces)


def test_damaged_packets_are_skipped() -> None:
    data = bytearray(encoded("adts", "aac", 44_100))
    middle = len(data) // 2
    data[middle : middle + 40] = bytes(40)
    seconds, hertz = length_and_pitch(bytes(data))
    assert seconds > 0.7
    assert hertz == pytest.approx(HERTZ, abs=5)


def test_sounds_that_need_no_extra_are_decoded() -> None:
    for data in FILES.values():
        assert length_and_pitch(data)[1] == pytest.approx(HERTZ, abs=5)
    assert length_and_pitch(mp3_frames(40))[0] == pytest.approx(1, abs=0.1)
