"""Random pictures and sounds as parts of messages."""

from __future__ import annotations

import base64
import io
import wave

import numpy as np
from PIL import Image

_SOUND_RATE = 16_000


def uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def picture_part(pixels: int, seed: int, *, squares: int = 32) -> dict[str, object]:
    """`squares`: colours along a side. Fewer make a smaller file."""
    file = io.BytesIO()
    coarse = np.random.default_rng(seed).integers(0, 256, (squares, squares, 3), np.uint8)
    Image.fromarray(coarse).resize((pixels, pixels)).save(file, "PNG", compress_level=1)
    return {"type": "image_url", "image_url": {"url": uri("image/png", file.getvalue())}}


def sound_part(seconds: float, seed: int) -> dict[str, object]:
    file = io.BytesIO()
    noise = np.random.default_rng(seed).normal(0, 3000, int(seconds * _SOUND_RATE)).astype("<i2")
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, _SOUND_RATE, len(noise), "NONE", ""))
        sound.writeframes(noise.tobytes())
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
