"""Kinds of files that the server reads, from the readers' own tables."""

from __future__ import annotations

from manual.table import table
from openai_cpu_server.reader.decoders import PICTURE_FORMATS
from openai_cpu_server.reader.documents.blocks import KINDS
from openai_cpu_server.reader.sounds import MORE_SOUNDS, SOUNDS

_HEIC = "heic"


def file_table() -> str:
    pictures = [name for name in PICTURE_FORMATS if name != "HEIF"]
    rows = [
        ("Pictures", ", ".join(pictures), "", "the first frame, upright, in sRGB, over white"),
        ("", "HEIC", f"`{_HEIC}`", "the same"),
        ("Sounds", ", ".join(SOUNDS), "", "one channel at the model's rate"),
        ("", ", ".join(MORE_SOUNDS), "`sound`", "the same; of a film its first sound track"),
        *(
            ("" if number else "Documents", kind.names, f"`{kind.extra}`" if kind.extra else "", kind.content)
            for number, kind in enumerate(KINDS)
        ),
    ]
    return table(("Files", "Kinds", "Extra", "What the model gets"), rows)
