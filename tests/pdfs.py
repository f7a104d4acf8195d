"""Small PDF files with text."""

from __future__ import annotations

import io
from typing import Any

from pypdf import PdfWriter
from pypdf.generic import DictionaryObject, NameObject, NumberObject, StreamObject


def pdf(*pages: str, compressed: bool = True, repeated: int = 1) -> bytes:
    """Write a page for each text, with its lines. `repeated`: how often the file has all of these pages."""
    writer = PdfWriter()
    font = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    for text in pages:
        page, content = writer.add_blank_page(612, 792), StreamObject()
        lines = "".join(f"({line}) Tj 0 -14 Td\n" for line in text.splitlines())
        content.set_data(f"BT /F1 12 Tf 72 720 Td\n{lines}ET".encode())
        reference = writer._add_object(content.flate_encode() if compressed else content)
        names = DictionaryObject({NameObject(name): NameObject(value) for name, value in font.items()})
        fonts = DictionaryObject({NameObject("/F1"): names})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        page[NameObject("/Contents")] = reference
    tree: Any = writer._pages.get_object()
    tree["/Kids"].extend([*tree["/Kids"]] * (repeated - 1))
    tree[NameObject("/Count")] = NumberObject(len(tree["/Kids"]))
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()


def drawn_pdf(*texts: tuple[float, float, str], size: int = 10) -> bytes:
    """Draw texts on one page in this order, at positions from its lower left corner."""
    writer = PdfWriter(clone_from=io.BytesIO(pdf("x")))
    content = StreamObject()
    drawn = "".join(f"1 0 0 1 {x} {y} Tm ({text}) Tj\n" for x, y, text in texts)
    content.set_data(f"BT /F1 {size} Tf\n{drawn}ET".encode())
    writer.pages[0][NameObject("/Contents")] = writer._add_object(content)
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()
