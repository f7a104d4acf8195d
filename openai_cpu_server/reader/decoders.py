"""Decoder of clients' pictures, which may hang or crash. Only reader processes load its libraries."""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import re
import warnings
from typing import TYPE_CHECKING

from openai_cpu_server.contract.media import Picture, PictureSize
from openai_cpu_server.errors import InvalidRequest

if TYPE_CHECKING:
    from PIL import Image

PICTURE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF")
_HEIF = re.compile(rb"....ftyp(?:hei[cxms]|hev[cx]|mif1|msf1)", re.DOTALL)
_AVIF = re.compile(rb"....ftyp(?:avi[fs])", re.DOTALL)
_INVALID = "invalid_image"
_SCAN = b"\xff\xda"
_MOST_SCANS = 20
"""Encoders make 10. Each scan is a pass over all pixels, however few bytes it has."""
_SHOWN_PIXELS = 2048 * 2048
"""Limit of scaling. Qwen's encoders see the most: 4,096 patches of 32 x 32 pixels."""
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
_GREYS = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")
"""Modes with more than 8 bits."""
_LEAST_SIDE = 64
"""Encoders refuse narrower pictures."""


_PLUGINS = ("Bmp", "Gif", "Jpeg", "Mpo", "Png", "Tiff", "WebP")
"""MPO is for phones' multiple pictures, TIFF also for EXIF."""


def load_decoders() -> None:
    """Load all libraries, which a confined process cannot."""
    for module in ("miniaudio", "numpy", "PIL.ImageCms", *(f"PIL.{name}ImagePlugin" for name in _PLUGINS)):
        importlib.import_module(module)
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # `decoded_picture` has a limit of its own


def _load_further(data: bytes) -> None:
    """Load large decoders for pictures of phones and of the web."""
    if _AVIF.match(data):
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # memory for the stacks of one thread per core is not there
    elif _HEIF.match(data):
        try:
            import pi_heif
        except ImportError:
            message = "this is a HEIC picture, which needs the server's extra 'heic'"
            raise InvalidRequest(message, code=_INVALID) from None
        pi_heif.register_heif_opener()


def decoded_picture(data: bytes, *, most_pixels: int, most_side: int) -> Picture:
    """Return the first frame, upright, over white, within encoders' limits. Raises InvalidRequest, for a
    wrong size before decoding.

    `most_side`: longest side, or 0 for no limit.
    """
    load_decoders()
    _load_further(data)
    from PIL import Image, UnidentifiedImageError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loaded = [
                name for name in PICTURE_FORMATS if name in Image.OPEN
            ]  # for another, Pillow loads all it has
            with Image.open(io.BytesIO(data), formats=loaded) as image:
                width, height = image.size
                if why_not := PictureSize(width, height).why_not:
                    raise InvalidRequest(why_not, code=_INVALID)
                if width * height > most_pixels:
                    message = f"it has {width} x {height} pixels, and at most {most_pixels} are taken"
                    raise InvalidRequest(message, code="image_too_large")
                is_jpeg = image.format in ("JPEG", "MPO")
                if is_jpeg and data.count(_SCAN) * width * height > _MOST_SCANS * most_pixels:
                    raise InvalidRequest("it has too many scans", code="image_too_large")
                image.draft(None, _shown_size(width, height, most_side))  # JPEG files are decoded smaller
                image.load()
                shown = _over_white(_in_srgb(_upright(image)))
                shown.thumbnail(_shown_size(*shown.size, most_side))
        except UnidentifiedImageError:
            names = ", ".join(PICTURE_FORMATS)
            raise InvalidRequest(f"this is not a picture of a known type ({names})", code=_INVALID) from None
        except (InvalidRequest, MemoryError, RecursionError):
            raise
        except Exception as error:  # the library raises many kinds, in its own words
            raise InvalidRequest("the picture is damaged", code=_INVALID) from error
    return Picture.of(PictureSize(*shown.size), shown.tobytes())


def _shown_size(width: int, height: int, most_side: int) -> tuple[int, int]:
    longer = max(width, height)
    by_side = max((most_side or longer) / longer, _LEAST_SIDE / min(width, height))
    scale = min(1.0, math.sqrt(_SHOWN_PIXELS / (width * height)), by_side)
    return max(1, int(width * scale + _ROUNDING)), max(1, int(height * scale + _ROUNDING))


def _upright(image: Image.Image) -> Image.Image:
    """Ignore damage in other EXIF data, as browsers do."""
    from PIL import Image

    orientation: object = None
    with contextlib.suppress(Exception):
        orientation = image.getexif().get(_ORIENTATION)
    turn = _TURNS.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(Image.Transpose[turn])


def _over_white(image: Image.Image) -> Image.Image:
    """Convert as viewers do: 16 bits to 8, transparent to white."""
    import numpy as np
    from PIL import Image

    hidden = image.info.get("transparency")
    if image.mode in _GREYS:
        grey = _of_8_bits(image)
        if image.format != "PNG" or not isinstance(hidden, int):
            return grey.convert("RGB")
        grey.paste(255, mask=Image.fromarray(np.asarray(image) == hidden))
        return grey.convert("RGB")
    if isinstance(hidden, tuple) and max(hidden, default=0) > 255:  # the library has only 8 of the 16 bits
        image.info["transparency"] = tuple(level >> 8 for level in hidden)
    if not image.has_transparency_data:
        return image.convert("RGB")
    transparent = image.convert("RGBA")
    white = Image.new("RGBA", transparent.size, (255, 255, 255, 255))
    white.alpha_composite(transparent)
    return white.convert("RGB")


def _of_8_bits(image: Image.Image) -> Image.Image:
    """PIL clips levels at 255. 16-bit integers use their whole range; others are scaled by their
    brightest."""
    most = 65_535.0
    if not (image.mode.startswith("I;16") or image.format == "PNG"):
        _, brightest = image.getextrema()
        level = float(brightest) if isinstance(brightest, (int, float)) else most
        most = next((step for step in (1.0, 255.0, 65_535.0) if level <= step), level)
    return image.convert("F").point(lambda level: level * (255.0 / most)).convert("L")


def _in_srgb(image: Image.Image) -> Image.Image:
    """Ignore a damaged profile, as browsers do."""
    from PIL import ImageCms

    profile = image.info.get("icc_profile")
    if not profile or image.mode in _GREYS:
        return image
    with contextlib.suppress(Exception):
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "srgb" in ImageCms.getProfileDescription(source).lower():
            return image
        alpha = image.convert("RGBA").getchannel("A") if image.has_transparency_data else None
        colours = image if image.mode in ("L", "CMYK") and alpha is None else image.convert("RGB")
        target = ImageCms.createProfile("sRGB")
        shown = ImageCms.profileToProfile(colours, source, target, outputMode="RGB")
        assert shown is not None
        if alpha is not None:
            shown.putalpha(alpha)
        return shown
    return image
