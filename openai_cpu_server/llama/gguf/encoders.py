"""What a projector's file says of its encoders, before anything loads it."""

from __future__ import annotations

import msgspec

from openai_cpu_server.llama.gguf.header import GgufHeader

_SOUND_RATES = {"mimo_audio": 24_000}
"""By kind; others take what Whisper does."""
_WHISPER_RATE = 16_000
_HEARS_NOTHING = "gemma3nv"
"""llama.cpp leaves out the encoder of sounds that lies beside it."""


class EncoderFacts(msgspec.Struct, frozen=True):
    """None, where the file does not say."""

    kind: str | None
    """How what it takes is prepared and encoded, in llama.cpp's words."""
    layers: int | None
    width: int | None
    """Of its activations."""
    ffn: int | None
    heads: int | None
    rows_width: int | None
    image_size: int | None
    """The longer side of what it sees at once, in pixels."""
    patch_size: int | None
    num_bands: int | None
    """Of the spectrum that it hears."""


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
        """That of the embeddings of models that it goes with."""
        encoder = self.seeing or self.hearing
        return None if encoder is None else encoder.rows_width

    @property
    def sound_rate(self) -> int:
        """As in `ModelInfo`."""
        return 0 if self.hearing is None else _SOUND_RATES.get(self.hearing.kind or "", _WHISPER_RATE)


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
    )
