"""Decoder of clients' sounds, which may hang or crash: miniaudio, or PyAV (extra `sound`). Long sounds are
decoded in pieces to bound memory."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from openai_cpu_server.contract.media import Sound
from openai_cpu_server.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np

SOUNDS = ("WAV", "MP3", "FLAC", "Ogg Vorbis")
"""Decoded without the extra."""
MORE_SOUNDS = ("WebM", "Ogg Opus", "M4A", "MP4", "AAC", "AMR", "3GP", "AIFF", "CAF", "WMA")
_NO_SOUND = "invalid_audio"
_TOO_LONG_A_SOUND = "audio_too_large"
_FRAMES_AT_ONCE = 16_384
_LOUDEST = 1e8
"""Samples beyond 1 are kept, as in llama.cpp, because some files hold integers as floats. Spectra of this
size do not overflow."""
_SHORTEST_PIECE_S, _PAUSE_WITHIN_S, _PAUSE_S = 1.0, 10.0, 0.2
_FOR_MINIAUDIO = re.compile(
    rb"RIFF....WAVE|RIFX|RF64|riff|ID3|\xff[\xe2-\xe5\xf2-\xf5\xfa-\xfd]|fLaC|OggS.{24}.{0,255}?\x01vorbis",
    re.DOTALL,
)
"""First bytes that miniaudio decodes. It makes noise of others by decoding them as MP3."""
_HEADERS = {
    **dict.fromkeys((b"RIFF", b"RIFX", b"RF64", b"riff"), "wav_get_info"),
    b"fLaC": "flac_get_info",
    b"OggS": "vorbis_get_info",
}
"""Functions that fail for a rejected header, before miniaudio tries MP3."""
_DEMUXERS = (
    "aac,ac3,aiff,amr,amrnb,amrwb,asf,au,caf,flac,loas,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mp3,ogg,wav,w64"
)
"""FFmpeg's other formats include lists of further files."""
_SECOND_COST, _PACKET_COST = 1_000_000, 16_000
"""Limit of decoded samples of all channels per allowed second, and a packet's cost in samples: the 50 packets
a second of Opus and AMR fit."""
_LEAST_RATE = 1000
"""Real recordings have more; one frame at a lower rate would be hours."""


def sound_pieces(data: bytes, *, rate: int, most_samples: int, most_at_once: int) -> Iterator[Sound]:
    """Yield one channel in pieces cut at quiet places. Raises InvalidRequest, for too many samples as soon as
    they are decoded.

    `most_at_once`: samples of the longest piece, or 0 for one piece.
    """
    import numpy as np

    shortest = int(_SHORTEST_PIECE_S * rate)
    waiting, num_waiting, num_samples = list[np.ndarray](), 0, 0
    for block in _checked(_decoded(data, rate, _Budget(most_samples / rate))):
        waiting.append(block)
        num_waiting += len(block)
        num_samples += len(block)
        if num_samples > most_samples:
            raise InvalidRequest(f"it is longer than {most_samples / rate:g} seconds", code=_TOO_LONG_A_SOUND)
        while most_at_once and num_waiting >= most_at_once + shortest:
            whole = np.concatenate(waiting)
            end = _end(whole, rate, most_at_once)
            yield _sound(whole[:end])
            waiting, num_waiting = [whole[end:]], num_waiting - end
    if not num_samples:
        raise InvalidRequest("there is no sound in it", code=_NO_SOUND)
    whole = np.concatenate(waiting)
    while most_at_once and len(whole) > most_at_once:
        end = _end(whole, rate, most_at_once)
        yield _sound(whole[:end])
        whole = whole[end:]
    yield _sound(whole)


class _Budget:
    """Limit of computing, however short the result."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._left = seconds * _SECOND_COST

    def spend(self, cost: float) -> None:
        self._left -= cost
        if self._left < 0:
            message = f"decoding it takes more computing than {self._seconds:g} seconds of usual sound"
            raise InvalidRequest(message, code=_TOO_LONG_A_SOUND)


def _sound(samples: np.ndarray) -> Sound:
    return Sound.of(samples.astype("<f4", copy=False).tobytes())


def _checked(blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    import numpy as np

    for block in blocks:
        if not np.isfinite(block).all():
            raise InvalidRequest("the sound is damaged (it has samples that are not numbers)", code=_NO_SOUND)
        if len(block) and np.abs(block).max() > _LOUDEST:
            raise InvalidRequest(
                "the sound is damaged (it has samples that are far too large)", code=_NO_SOUND
            )
        yield block


def _decoded(data: bytes, rate: int, budget: _Budget) -> Iterator[np.ndarray]:
    if _FOR_MINIAUDIO.match(data):
        blocks = _by_miniaudio(data, rate, budget)
        try:
            first = next(blocks, None)
        except (MemoryError, RecursionError):
            raise
        except Exception:  # the library does not say why
            first = None
        if first is not None:
            yield first
            yield from blocks
            return
    yield from _by_av(data, rate, budget)


def _by_miniaudio(data: bytes, rate: int, budget: _Budget) -> Iterator[np.ndarray]:
    import miniaudio
    import numpy as np

    data = _with_length(data)
    sample_cost = 1.0
    if name := _HEADERS.get(data[:4]):
        header = getattr(miniaudio, name)(data)
        sample_cost = header.nchannels * header.sample_rate / rate
    for part in miniaudio.stream_memory(data, miniaudio.SampleFormat.FLOAT32, 1, rate, _FRAMES_AT_ONCE):
        budget.spend(len(part) * sample_cost)
        yield np.frombuffer(part.tobytes(), np.float32)


def _with_length(data: bytes) -> bytes:
    """Give a length to a WAV file from a pipe, which lasts to its end."""
    at = 12
    while data[:4] == b"RIFF" and at + 8 <= len(data):
        name, size = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        rest = len(data) - at - 8
        if name == b"data" and (size == 0 or size > rest):
            head = data[:4] + struct.pack("<I", len(data) - 8) + data[8 : at + 4]
            return head + struct.pack("<I", rest) + data[at + 8 :]
        at += 8 + size + size % 2
    return data


def _by_av(data: bytes, rate: int, budget: _Budget) -> Iterator[np.ndarray]:
    try:
        import av
    except ImportError:
        raise _unknown(SOUNDS, " (more with the server's extra 'sound')") from None
    num_frames, options = 0, {"format_whitelist": _DEMUXERS}
    try:
        with av.open(io.BytesIO(data), options=options, metadata_errors="replace") as container:
            if not container.streams.audio:
                raise InvalidRequest("there is no sound in it", code=_NO_SOUND)
            resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
            for frame in _frames(av, container, budget):
                num_frames += 1
                for part in resampler.resample(frame):
                    yield part.to_ndarray()[0]
            for part in resampler.resample(None) if num_frames else ():
                yield part.to_ndarray()[0]
    except (InvalidRequest, MemoryError, RecursionError, GeneratorExit):
        raise
    except Exception:  # as above
        if not num_frames:
            raise _unknown((*SOUNDS, *MORE_SOUNDS), "") from None
    if not num_frames:
        raise InvalidRequest("there is no sound in it", code=_NO_SOUND)


def _frames(av: Any, container: Any, budget: _Budget) -> Iterator[Any]:
    """Skip damaged packets, as players do. Raises InvalidRequest."""
    for packet in container.demux(container.streams.audio[0]):
        budget.spend(_PACKET_COST)
        try:
            frames = packet.decode()
        except av.error.InvalidDataError:
            continue
        for frame in frames:
            if frame.sample_rate < _LEAST_RATE:
                message = f"it has {frame.sample_rate} samples a second, and needs at least {_LEAST_RATE}"
                raise InvalidRequest(message, code=_NO_SOUND)
            budget.spend(frame.samples * frame.layout.nb_channels)
            yield frame


def _unknown(names: tuple[str, ...], more: str) -> InvalidRequest:
    return InvalidRequest(f"this is not a sound of a known type ({', '.join(names)}){more}", code=_NO_SOUND)


def _end(samples: np.ndarray, rate: int, most_at_once: int) -> int:
    """Choose the quietest place near a piece's end."""
    times_s = (_PAUSE_WITHIN_S, _SHORTEST_PIECE_S, _PAUSE_S)
    within, shortest, width = (int(seconds * rate) for seconds in times_s)
    last = min(most_at_once, len(samples) - shortest)
    first = max(last - within, shortest)
    stretches = (last - first) // width
    if stretches < 1:
        return last
    energy = samples[first : first + stretches * width].astype("f8") ** 2
    return first + int(energy.reshape(stretches, width).sum(axis=1).argmin()) * width + width // 2
