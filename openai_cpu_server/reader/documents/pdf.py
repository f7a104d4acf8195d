"""Pages, forms, notes and attached files of PDFs, by PDFium."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from openai_cpu_server.contract.media import Picture, PictureSize
from openai_cpu_server.reader.documents.blocks import (
    MOST_ATTACHED,
    AttachedFile,
    DocumentBlock,
    not_shown,
    unreadable,
)
from openai_cpu_server.reader.documents.pdf_tables import TextRun, text_with_tables

_PAGE_SIDE = 1536
"""Longest side in pixels, which keeps small print readable."""

_HYPHEN = re.compile("[\x02\ufffe]\r?\n?")
"""PDFium's mark of a word's hyphenation at a line end."""


def opened_pdf(data: bytes) -> Any:
    import pypdfium2

    try:
        return pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if "assword" in str(error):
            raise unreadable("the PDF is encrypted") from None
        raise unreadable("the PDF is damaged") from None


def pdf_blocks(data: bytes) -> Iterator[DocumentBlock]:
    """Yield pages, then attached files. Raises InvalidRequest."""
    import pypdfium2.raw as pdfium

    has_content = False
    with contextlib.closing(opened_pdf(data)) as pdf:
        pdf.init_forms()
        if pdf.get_formtype() in (pdfium.FORMTYPE_XFA_FULL, pdfium.FORMTYPE_XFA_FOREGROUND):
            yield "[This PDF has an XFA form, whose fields are not read.]"
        for number in range(1, len(pdf) + 1):
            try:
                blocks = [*_page(pdf, number)]
            except Exception:  # the others may be sound
                blocks = [f"[Page {number} is damaged.]"]
            else:
                has_content = has_content or blocks != [_empty(number)]
            yield from blocks
        for index in range(min(pdf.count_attachments(), MOST_ATTACHED)):
            attachment, has_content = pdf.get_attachment(index), True
            yield AttachedFile(attachment.get_name(), bytes(attachment.get_data()))
    if not has_content:
        raise unreadable("the PDF has no text")


def _empty(number: int) -> str:
    return f"[Page {number} is empty.]"


def _page(pdf: Any, number: int) -> Iterator[DocumentBlock]:
    import pypdfium2.raw as pdfium

    with contextlib.closing(pdf[number - 1]) as page:
        with contextlib.closing(page.get_textpage()) as textpage:
            text = textpage.get_text_range(errors="surrogatepass").replace("\r\n", "\n")
            text = text_with_tables(text, _text_runs(textpage, text))
        text = _HYPHEN.sub("", text).strip()
        notes = [*_annotations(pdf, page)]
        pictures = page.get_objects((pdfium.FPDF_PAGEOBJ_IMAGE,), max_depth=4)
        num_pictures = sum(1 for _ in islice(pictures, MOST_ATTACHED))
        has_drawings = num_pictures or any(True for _ in islice(page.get_objects(), 1))
    if _is_readable(text):
        shown = f"\n{not_shown(num_pictures)}" if num_pictures else ""
        yield f"[Page {number}]\n{text}{shown}"
    elif has_drawings and (num_pictures or text or not notes):
        yield number
    elif not notes:
        yield _empty(number)
    if notes:
        yield "\n".join(notes if _is_readable(text) else [f"[Page {number}]", *notes])


def _text_runs(textpage: Any, text: str) -> list[TextRun]:
    runs, at = list[TextRun](), 0
    for index in range(textpage.count_rects()):
        left, bottom, right, top = textpage.get_rect(index)
        middle = (bottom + top) / 2
        # The middle alone, where boxes of lines overlap.
        for low, high in ((bottom, top), (middle - 0.2, middle + 0.2)):
            inside = (left + 0.1, low + 0.1, right - 0.1, high - 0.1)
            found = textpage.get_text_bounded(*inside, errors="surrogatepass").strip()
            start = text.find(found, at) if found else -1
            if start >= 0:
                at = start + len(found)
                runs.append(TextRun(left, bottom, right, top, start, at))
                break
    return runs


def _is_readable(text: str) -> bool:
    """Fonts without Unicode mappings give private or unknown characters."""
    unknown = sum(1 for letter in text if letter == "\ufffd" or "\ue000" <= letter <= "\uf8ff")
    return 2 * unknown < len(text) or (unknown < len(text) <= 8)


def _annotations(pdf: Any, page: Any) -> Iterator[str]:
    import pypdfium2.raw as pdfium

    for index in range(pdfium.FPDFPage_GetAnnotCount(page)):
        annotation = pdfium.FPDFPage_GetAnnot(page, index)
        kind = pdfium.FPDFAnnot_GetSubtype(annotation)
        try:
            if kind == pdfium.FPDF_ANNOT_WIDGET and pdf.formenv is not None:
                yield from _field(pdf.formenv, annotation)
            elif kind != pdfium.FPDF_ANNOT_POPUP:  # the remark itself has its text, too
                text = _string(pdfium.FPDFAnnot_GetStringValue, annotation, b"Contents")
                author = _string(pdfium.FPDFAnnot_GetStringValue, annotation, b"T")
                if text:
                    yield f"[Note{f' of {author}' if author else ''}: {text}]"
        finally:
            pdfium.FPDFPage_CloseAnnot(annotation)


def _field(form: Any, annotation: Any) -> Iterator[str]:
    import pypdfium2.raw as pdfium

    kind = pdfium.FPDFAnnot_GetFormFieldType(form, annotation)
    name = _string(pdfium.FPDFAnnot_GetFormFieldName, form, annotation)
    value = _string(pdfium.FPDFAnnot_GetFormFieldValue, form, annotation)
    if kind in (pdfium.FPDF_FORMFIELD_CHECKBOX, pdfium.FPDF_FORMFIELD_RADIOBUTTON):
        is_checked = pdfium.FPDFAnnot_IsChecked(form, annotation)
        value = (_string(pdfium.FPDFAnnot_GetFormFieldExportValue, form, annotation) or "yes") * is_checked
    if value and kind != pdfium.FPDF_FORMFIELD_PUSHBUTTON:
        yield f"[Field {name}: {value}]"


def _string(call: Callable[..., int], *arguments: Any) -> str:
    """Call twice; the first call returns the size in bytes."""
    num_bytes = call(*arguments, None, 0)
    buffer = (ctypes.c_ushort * (num_bytes // 2 + 1))()
    call(*arguments, buffer, num_bytes)
    text = bytes(buffer)[: max(0, num_bytes - 2)].decode("utf-16-le", "surrogatepass")
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def rendered_page(data: bytes, number: int, *, most_pixels: int) -> Picture:
    with contextlib.closing(opened_pdf(data)) as pdf:
        pdf.init_forms()
        page = pdf[number - 1]
        width, height = (max(side, 1.0) for side in page.get_size())
        scale = min(_PAGE_SIDE / max(width, height), 0.99 * (most_pixels / (width * height)) ** 0.5)
        image = page.render(scale=scale).to_pil().convert("RGB")
    return Picture.of(PictureSize(*image.size), image.tobytes())
