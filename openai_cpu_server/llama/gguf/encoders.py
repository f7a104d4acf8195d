"""Facts in a projector's file about its encoders."""

from __future__ import annotations

import msgspec

from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import file_tensors

_SOUND_RATES = {"mimo_audio": 24_000}
"""Samples per second; other kinds use Whisper's."""
_WHISPER_RATE = 16_000
_HEARS_NOTHING = "gemma3nv"
"""Kind whose encoder of sounds llama.cpp leaves out."""
_STACKING = frozenset({"glma", "meralion", "ultravox", "voxtral"})
"""Kinds that merge several rows into one."""
_OF_WHISPER = _STACKING | {"musicflamingo", "qwen2.5o", "qwen2a"}
"""Kinds that make half as many positions of 3,000 frames."""
_FRAMES = 3000
_PLACES = "a.position_embd.weight"


class EncoderFacts(msgspec.Struct, frozen=True):
    """Fields are None if the file does not state them."""

    kind: str | None
    """llama.cpp's name."""
    layers: int | None
    width: int | None
    ffn: int | None
    heads: int | None
    rows_width: int | None
    image_size: int | None
    """Longer side of one view, in pixels."""
    patch_size: int | None
    num_bands: int | None
    stacked: int | None = None

    @property
    def miscounted_rows(self) -> tuple[int, int] | None:
        """Rows that llama.cpp makes of 30 seconds of sound, and rows that it expects, if it aborts because
        these differ.

        It rounds up as if their length were a power of two.
        """
        stacked, width = self.stacked or 1, self.width or 0
        if self.kind not in _STACKING or stacked <= 1 or width < 1:
            return None
        halved = 2 if self.kind == "voxtral" else 1
        row = width * stacked
        made = ((_FRAMES // 2 // halved * width + row - 1) & ~(row - 1)) // row
        is_cut = self.kind == "glma"
        expected = _FRAMES // 2 // stacked if is_cut else -(-_FRAMES // stacked) // 2 // halved
        return None if made == expected else (made, expected)


class ProjectorFacts(msgspec.Struct, frozen=True):
    seeing: EncoderFacts | None
    hearing: EncoderFacts | None

    @classmethod
    def of(cls, header: GgufHeader) -> ProjectorFacts:
        seeing, hearing = _encoder(header, "vision"), _encoder(header, "audio")
        is_deaf = seeing is not None and seeing.kind == _HEARS_NOTHING
        return cls(seeing, None if is_deaf else hearing)

    @property
    def rows_width(self) -> int | None:
        encoder = self.seeing or self.hearing
        return None if encoder is None else encoder.rows_width

    @property
    def sound_rate(self) -> int:
        return 0 if self.hearing is None else _SOUND_RATES.get(self.hearing.kind or "", _WHISPER_RATE)


def why_deadly(header: GgufHeader) -> str | None:
    """Return why llama.cpp would abort at the first sound, or None."""
    hearing = ProjectorFacts.of(header).hearing
    if hearing is None or hearing.kind not in _OF_WHISPER:
        return None
    if (rows := hearing.miscounted_rows) is not None:
        made_of = f"of rows {hearing.width} wide, {hearing.stacked} of which become one"
        return f"{made_of}, it makes {rows[0]} where it expects {rows[1]}"
    places = next((tensor for tensor in file_tensors(header) if tensor.name == _PLACES), None)
    count = places.shape[1] if places is not None and len(places.shape) > 1 else None
    if count is None or count >= _FRAMES // 2:  # a missing tensor is llama.cpp's own error
        return None
    return f"{_PLACES} has {count} places, and it wants {_FRAMES // 2}"


def _encoder(header: GgufHeader, sense: str) -> EncoderFacts | None:
    at = f"clip.{sense}"
    if not header.has(f"{at}.embedding_length") or header.get_bool(f"clip.has_{sense}_encoder") is False:
        return None
    return EncoderFacts(
        kind=header.get_str("clip.projector_type") or header.get_str(f"{at}.projector_type"),
        layers=header.get_int(f"{at}.block_count"),
        width=header.get_int(f"{at}.embedding_length"),
        ffn=header.get_int(f"{at}.feed_forward_length"),
        heads=header.get_int(f"{at}.attention.head_count"),
        rows_width=header.get_int(f"{at}.projection_dim"),
        image_size=header.get_int(f"{at}.image_size"),
        patch_size=header.get_int(f"{at}.patch_size"),
        num_bands=header.get_int(f"{at}.num_mel_bins"),
        stacked=header.get_int(f"{at}.projector.stack_factor"),
    )
