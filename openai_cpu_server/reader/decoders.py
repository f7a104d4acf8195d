"""Decoders of clients' pictures and sounds, which may hang or die of their input. Their libraries are loaded
only in processes that decode them."""

from __future__ import annotations

import array
import contextlib
import io
import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from openai_cpu_server.contract.media import Picture, PictureSize, Sound
from openai_cpu_server.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_INVALID = "invalid_image"
_SCAN = b"\xff\xda"
"""Begins each scan of a JPEG file."""
_MOST_SCANS = 20
"""Scans of the largest picture; encoders make 10. Each takes a pass over all pixels, however few bytes it
has."""
_SHOWN_PIXELS = 2048 * 2048
"""Larger pictures are scaled down. Qwen's encoders see the most, 4,096 patches of 32 x 32 pixels."""
_ROUNDING = 1e-6
_ORIENTATION = 0x112
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_GREYS_OF_16_BITS = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")


def load_decoders() -> None:
    """Load all libraries, because a confined process cannot."""
    import miniaudio
    import numpy
    from PIL import (
        BmpImagePlugin,
        GifImagePlugin,
        Image,
        JpegImagePlugin,
        MpoImagePlugin,
        PngImagePlugin,
        TiffImagePlugin,
        WebPImagePlugin,
    )

    needed = BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin
    needed_by_them = MpoImagePlugin, TiffImagePlugin  # photos of phones that are several, and EXIF
    assert all((*needed, *needed_by_them, miniaudio, numpy))
    Image.MAX_IMAGE_PIXELS = None  # `decoded_picture` has a limit of its own


def decoded_picture(data: bytes, *, most_pixels: int, most_side: int) -> Picture:
    """Return the first frame, upright, over white, and no larger than encoders see. Raises InvalidRequest,
    for too many pixels before decoding.

    `most_side`: longest side, or 0 for no limit.
    """
    load_decoders()
    from PIL import Image, UnidentifiedImageError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                width, height = image.size
                if width * height > most_pixels:
                    message = f"it has {width} x {height} pixels, and at most {most_pixels} are taken"
                    raise InvalidRequest(message, code="image_too_large")
                is_jpeg = image.format in ("JPEG", "MPO")
                if is_jpeg and data.count(_SCAN) * width * height > _MOST_SCANS * most_pixels:
                    raise InvalidRequest("it has too many scans", code="image_too_large")
                image.draft(None, _shown_size(width, height, most_side))  # JPEG files are decoded smaller
                image.load()
                shown = _over_white(_upright(image))
                shown.thumbnail(_shown_size(*shown.size, most_side))
        except UnidentifiedImageError:
            names = ", ".join(FORMATS)
            raise InvalidRequest(f"this is not a picture of a known type ({names})", code=_INVALID) from None
        except (InvalidRequest, MemoryError, RecursionError):
            raise
        except Exception as error:  # the library raises many kinds, and its next version may raise others
            raise InvalidRequest(f"the picture is damaged ({error})", code=_INVALID) from None
    return Picture.of(PictureSize(*shown.size), shown.tobytes())


def _shown_size(width: int, height: int, most_side: int) -> tuple[int, int]:
    longer = max(width, height)
    scale = min(1.0, math.sqrt(_SHOWN_PIXELS / (width * height)), (most_side or longer) / longer)
    return max(1, int(width * scale + _ROUNDING)), max(1, int(height * scale + _ROUNDING))


def _upright(image: Image.Image) -> Image.Image:
    """Other EXIF data may be damaged, as in browsers."""
    from PIL import Image

    orientation: object = None
    with contextlib.suppress(Exception):
        orientation = image.getexif().get(_ORIENTATION)
    turn = _TURNS.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(Image.Transpose[turn])


def _over_white(image: Image.Image) -> Image.Image:
    if image.mode in _GREYS_OF_16_BITS:
        return _of_8_bits(image).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    transparent = image.convert("RGBA")
    white = transparent.copy()
    white.paste((255, 255, 255, 255), (0, 0, *white.size))
    white.alpha_composite(transparent)
    return white.convert("RGB")


def _of_8_bits(image: Image.Image) -> Image.Image:
    """PIL itself clips 16-bit greys at 255."""
    _, brightest = image.getextrema()
    most = 65_535.0 if isinstance(brightest, (int, float)) and brightest > 255 else 255.0
    return image.convert("F").point(lambda level: level * (255.0 / most)).convert("L")


SOUNDS = ("WAV", "MP3", "FLAC", "Ogg Vorbis")
_NO_SOUND = "invalid_audio"
_TOO_LONG_A_SOUND = "audio_too_large"
_FRAMES_AT_ONCE = 16_384
_LOUDEST = 1e8
"""Samples beyond 1 are kept, as in llama.cpp, because some files hold integers as floats. Their spectrum
is far from an overflow."""
_SHORTEST_PIECE_S, _PAUSE_WITHIN_S, _PAUSE_S = 1.0, 10.0, 0.2


def decoded_sounds(data: bytes, *, rate: int, most_samples: int, most_at_once: int) -> tuple[Sound, ...]:
    """Return one channel at this rate, in pieces that are cut where it is quiet. Raises InvalidRequest, for
    too many samples as soon as they are decoded.

    `most_at_once`: samples of the longest piece, or 0 for one piece.
    """
    import numpy as np

    samples = np.frombuffer(_samples(data, rate, most_samples), np.float32)
    if not samples.size:
        raise InvalidRequest("there is no sound in it", code=_NO_SOUND)
    if not np.isfinite(samples).all():
        raise InvalidRequest("the sound is damaged (it has samples that are not numbers)", code=_NO_SOUND)
    if np.abs(samples).max() > _LOUDEST:
        raise InvalidRequest("the sound is damaged (it has samples beyond all measure)", code=_NO_SOUND)
    samples = samples.astype("<f4", copy=False)
    return tuple(Sound.of(piece.tobytes()) for piece in _pieces(samples, rate, most_at_once))


def _samples(data: bytes, rate: int, most_samples: int) -> bytearray:
    import miniaudio

    found = bytearray()
    most_bytes = most_samples * array.array("f").itemsize
    try:
        parts = miniaudio.stream_memory(data, miniaudio.SampleFormat.FLOAT32, 1, rate, _FRAMES_AT_ONCE)
        for part in parts:
            found += part.tobytes()
            if len(found) > most_bytes:
                message = f"it is longer than {most_samples / rate:g} seconds"
                raise InvalidRequest(message, code=_TOO_LONG_A_SOUND)
    except (InvalidRequest, MemoryError, RecursionError):
        raise
    except Exception:  # the library knows no more than that it is none
        names = ", ".join(SOUNDS)
        raise InvalidRequest(f"this is not a sound of a known type ({names})", code=_NO_SOUND) from None
    return found


def _pieces(samples: np.ndarray, rate: int, most_at_once: int) -> Iterator[np.ndarray]:
    within, shortest = (int(seconds * rate) for seconds in (_PAUSE_WITHIN_S, _SHORTEST_PIECE_S))
    while most_at_once and len(samples) > most_at_once:
        last = min(most_at_once, len(samples) - shortest)
        end = _quietest(samples, max(last - within, shortest), last, int(_PAUSE_S * rate))
        yield samples[:end]
        samples = samples[end:]
    yield samples


def _quietest(samples: np.ndarray, first: int, last: int, width: int) -> int:
    stretches = (last - first) // width
    if stretches < 1:
        return last
    energy = samples[first : first + stretches * width].astype("f8") ** 2
    return first + int(energy.reshape(stretches, width).sum(axis=1).argmin()) * width + width // 2
