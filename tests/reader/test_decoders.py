"""Pictures have at most as many pixels as encoders see."""

from __future__ import annotations

import io

import pytest
from PIL import Image
from pypdf import PdfWriter
from pypdf.generic import DictionaryObject, NameObject, StreamObject

from openai_cpu_server.contract.media import PictureSize
from openai_cpu_server.reader.decoders import decoded_picture
from openai_cpu_server.reader.documents.read import document_parts

LARGEST = 2048 * 2048


@pytest.mark.parametrize(
    ("kind", "size", "most_side", "expected"),
    [
        ("PNG", (2048, 2048), 0, (2048, 2048)),
        ("PNG", (100, 6000), 0, (100, 6000)),
        ("PNG", (4000, 3000), 0, (2364, 1773)),
        ("JPEG", (3000, 4000), 0, (1773, 2364)),
        ("JPEG", (3000, 4000), 512, (384, 512)),
        ("GIF", (4000, 3000), 512, (512, 384)),
    ],
)
def test_larger_pictures_are_scaled_down(
    kind: str, size: tuple[int, int], most_side: int, expected: tuple[int, int]
) -> None:
    file = io.BytesIO()
    left_half = Image.new("RGB", (size[0] // 2, size[1]), (0, 0, 255))
    image = Image.new("RGB", size, (255, 0, 0))
    image.paste(left_half)
    image.save(file, kind)
    picture = decoded_picture(file.getvalue(), most_pixels=12_000_000, most_side=most_side)
    assert picture.size == PictureSize(*expected)
    assert expected[0] * expected[1] <= LARGEST
    shown = Image.frombytes("RGB", expected, picture.content)
    for part, colour in ((0.25, (0, 0, 255)), (0.75, (255, 0, 0))):
        pixel = shown.getpixel((int(expected[0] * part), expected[1] // 2))
        assert isinstance(pixel, tuple)
        assert all(abs(found - meant) < 3 for found, meant in zip(pixel, colour, strict=True))


def test_half_a_character_of_a_document_is_a_replacement_character() -> None:
    writer = PdfWriter()
    page, content, meaning = writer.add_blank_page(100, 100), StreamObject(), StreamObject()
    content._data = b"BT /F1 12 Tf (AB) Tj ET"
    meaning._data = b"2 beginbfchar <41> <D800> <42> <0043> endbfchar"
    font = {
        "Type": NameObject("/Font"),
        "Subtype": NameObject("/Type1"),
        "BaseFont": NameObject("/Helvetica"),
    }
    named = DictionaryObject({NameObject(f"/{name}"): value for name, value in font.items()})
    named[NameObject("/ToUnicode")] = writer._add_object(meaning)
    fonts = DictionaryObject({NameObject("/F1"): writer._add_object(named)})
    page[NameObject("/Contents")] = writer._add_object(content)
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    file = io.BytesIO()
    writer.write(file)
    assert document_parts(file.getvalue(), most_chars=100).parts == ("[Page 1]\n\ud800C",)
