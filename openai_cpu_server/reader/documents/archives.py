"""ZIP archives of XML, and workbooks."""

from __future__ import annotations

import contextlib
import csv
import datetime
import io
import posixpath
import re
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from openai_cpu_server.reader.documents.blocks import UNKNOWN, too_long, unreadable

_MOST_UNPACKED, _MOST_MEMBERS = 128 * 2**20, 10_000
_MARKUP = (".xml", ".rels", ".xhtml", ".html", ".htm", ".opf", ".ncx", ".vml", ".bin")
_ENTITIES = (b"<!ENTITY", "<!ENTITY".encode("utf-16-le"), "<!ENTITY".encode("utf-16-be"))
_OF_ODF = "application/vnd.oasis.opendocument."


def archive_blocks(data: bytes) -> Iterator[str]:
    """Yield the text. Raises InvalidRequest."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, EOFError):
        raise unreadable(UNKNOWN) from None
    with archive:
        _check_members(archive)
        names = archive.namelist()
        kind = archive.read("mimetype").decode(errors="replace").strip() if "mimetype" in names else ""
        if any(name.startswith("word/") for name in names):
            yield from _docx(data, archive)
        elif any(name.startswith("xl/") for name in names):
            yield from workbook_blocks(data, archive)
        elif any(name.startswith("ppt/") for name in names):
            yield from _pptx(data)
        elif kind == "application/epub+zip":
            yield from _epub(archive)
        elif kind.startswith(f"{_OF_ODF}spreadsheet"):
            yield from workbook_blocks(data, archive)
        elif kind.startswith(_OF_ODF):
            yield from _open_document(data, archive)
        else:
            raise unreadable(f"{UNKNOWN}; the files of an archive can be attached")
        if any(name.endswith("vbaProject.bin") or name.startswith("Basic/") for name in names):
            yield "[The macros of this document are not read.]"


def _check_members(archive: zipfile.ZipFile) -> None:
    members = archive.infolist()
    markup = [member for member in members if member.filename.lower().endswith(_MARKUP)]
    if len(members) > _MOST_MEMBERS or sum(member.file_size for member in markup) > _MOST_UNPACKED:
        raise too_long(f"it unpacks to more than {_MOST_UNPACKED} bytes or {_MOST_MEMBERS} files")
    manifest = "META-INF/manifest.xml"
    is_encrypted = any(member.flag_bits & 1 for member in members)
    if is_encrypted or (manifest in archive.namelist() and b"encryption-data" in archive.read(manifest)):
        raise unreadable("the document is encrypted")
    for member in markup:
        if any(entity in archive.read(member) for entity in _ENTITIES):
            raise unreadable("its XML declares entities, which are not read")


def _xml(data: bytes) -> Any:
    from lxml import etree

    return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True))


def _local_name(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


_DRAWN = re.compile(r"(chart|diagram|threadedComment|comment)s?/?(?:data|chart|\w*)\d*\.xml$", re.IGNORECASE)


def _drawn(name: str, data: bytes) -> Iterator[str]:
    """Text of charts, diagrams and comments, which the libraries leave out."""
    match = _DRAWN.search(name)
    if match is None or re.search(r"diagrams/(?!data)|charts/(?!chart)", name):
        return
    kind = match[1].lower().removeprefix("threaded").capitalize()
    root = _xml(data)
    comments = [each for each in root.iter() if _local_name(each) in ("comment", "threadedComment", "cm")]
    for element in comments or [root]:
        words = [
            each.text.strip()
            for each in element.iter()
            if isinstance(each.tag, str) and each.text and _local_name(each) not in ("f", "formatCode")
        ]
        if text := " ".join(filter(None, words)):
            at = f" at {element.get('ref')}" if element.get("ref") else ""
            yield f"[{kind}{at}: {text}]"


def _docx(data: bytes, archive: zipfile.ZipFile) -> Iterator[str]:
    from docx2python import docx2python

    with docx2python(io.BytesIO(data)) as found:
        places = (found.header, found.body, found.footer, found.footnotes, found.endnotes)
        for title, place in zip(("Header", "", "Footer", "Footnotes", "Endnotes"), places, strict=True):
            blocks = [*filter(None, map(_table, place))]
            if blocks:
                yield "\n".join([f"[{title}]", *dict.fromkeys(blocks)] if title else blocks)
        for about, author, _, text in found.comments:
            yield f"[Comment of {author} on '{about.strip()}': {text.strip()}]"
    for name in archive.namelist():
        if "comment" not in name.lower():
            yield from _drawn(name, archive.read(name))


_PICTURE = re.compile(r"----(?:Image alt text---->(.*?)<)?-*media/[^-]*----|----Image alt text---->(.*?)<")


def _table(rows: Iterable[Iterable[Iterable[str]]]) -> str:
    """A paragraph is a table with one cell."""
    cells = [["\n".join(filter(str.strip, paragraphs)) for paragraphs in row] for row in rows]
    if len(cells) == 1 and len(cells[0]) == 1:
        text = cells[0][0]
    else:
        text = "\n".join(" | ".join(cell.replace("\n", " ") for cell in row) for row in cells)
    return _PICTURE.sub("[picture]", text).strip("\n")


def workbook_blocks(data: bytes, archive: zipfile.ZipFile | None = None) -> Iterator[str]:
    import python_calamine

    try:
        book = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
    except python_calamine.PasswordError:
        raise unreadable("the document is encrypted") from None
    for sheet in book.sheets_metadata:
        hidden = "" if sheet.visible is python_calamine.SheetVisibleEnum.Visible else ", hidden"
        is_sheet = sheet.typ is python_calamine.SheetTypeEnum.WorkSheet
        rows = book.get_sheet_by_name(sheet.name).iter_rows() if is_sheet else ()
        yield "\n".join([f"[Sheet: {sheet.name}{hidden}]", *map(_csv_row, rows)])
    if archive is None:
        return
    is_threaded = any("threadedComments/" in name for name in archive.namelist())
    for name in archive.namelist():
        if not (is_threaded and re.search(r"xl/comments\d*\.xml", name)):
            yield from _drawn(name, archive.read(name))
        if name.startswith("xl/worksheets/sheet"):
            num_unknown = len(_UNCOMPUTED.findall(archive.read(name)))
            if num_unknown:
                yield f"[{num_unknown} formulas in {posixpath.basename(name)} have no stored result.]"


_UNCOMPUTED = re.compile(rb"<f[^<>]*>[^<]*</f>\s*(?:<v\s*/>|<v></v>|</c>)")


def _csv_row(row: Iterable[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(map(_cell, row))
    return line.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value).upper() if isinstance(value, bool) else value


def _pptx(data: bytes) -> Iterator[str]:
    import pptx

    for number, slide in enumerate(pptx.Presentation(io.BytesIO(data)).slides, 1):
        hidden = ", hidden" if slide._element.get("show") == "0" else ""
        lines = [f"[Slide {number}{hidden}]", *_shapes(slide.shapes)]
        for relation in slide.part.rels.values():
            if not relation.is_external:
                lines += _drawn(relation.target_part.partname, relation.target_part.blob)
        if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame):
            lines += [f"[Notes: {notes.text}]"] if notes.text.strip() else []
        yield "\n".join(lines)


def _shapes(shapes: Iterable[Any]) -> Iterator[str]:
    for shape in shapes:
        if getattr(shape, "shapes", None) is not None:
            yield from _shapes(shape.shapes)
        elif getattr(shape, "has_table", False):
            for row in shape.table.rows:
                yield " | ".join(cell.text.replace("\n", " ") for cell in row.cells)
        elif shape.has_text_frame and shape.text_frame.text.strip():
            yield shape.text_frame.text.replace("\x0b", "\n")
        elif _local_name(shape._element) == "pic":
            yield f"[picture: {shape._element._nvXxPr.cNvPr.get('descr') or shape.name}]"


_TABLE_MARK = re.compile("\ue000(\\d+)\ue000")


def _open_document(data: bytes, archive: zipfile.ZipFile) -> Iterator[str]:
    import odfdo

    document = odfdo.Document(io.BytesIO(data))
    tables = document.body.tables
    for number, table in enumerate(tables):  # the library would write a cell on each line
        rows = [" | ".join("" if cell is None else str(cell) for cell in row) for row in table.get_values()]
        table.parent.replace_element(table, odfdo.Paragraph(f"\ue000{number}\ue000"))
        tables[number] = "\n".join(rows)
    text = str(document.get_formatted_text()).strip()
    yield _TABLE_MARK.sub(lambda mark: tables[int(mark[1])], text)
    if "styles.xml" in archive.namelist():
        for element in _xml(archive.read("styles.xml")).iter():
            if _local_name(element) in ("header", "footer") and (text := "".join(element.itertext()).strip()):
                yield f"[{_local_name(element).capitalize()}: {text}]"


def _epub(archive: zipfile.ZipFile) -> Iterator[str]:
    container = _xml(archive.read("META-INF/container.xml"))
    path = next(each.get("full-path") for each in container.iter() if _local_name(each) == "rootfile")
    package = _xml(archive.read(path))
    hrefs = {each.get("id"): each.get("href") for each in package.iter() if _local_name(each) == "item"}
    order = [each.get("idref") for each in package.iter() if _local_name(each) == "itemref"]
    if "META-INF/encryption.xml" in archive.namelist() and not order:
        raise unreadable("the document is encrypted")
    for number, item in enumerate(order, 1):
        name = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(hrefs.get(item) or "")))
        try:
            text = markdown(archive.read(name))
        except KeyError:
            text = "[It is missing.]"
        yield f"[Section {number}]\n{text}"


_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([\w-]{2,40})", re.IGNORECASE)


def markdown(data: bytes) -> str:
    """Leave out scripts and styles of HTML."""
    import justhtml

    source: str | bytes = data  # the library finds the encoding
    with contextlib.suppress(LookupError, ValueError):
        declared = _META_CHARSET.search(data[:2048])
        source = data.decode(declared[1].decode() if declared else "utf-8-sig")
    document = justhtml.JustHTML(source)
    title = document.query("title")
    text = str(document.to_markdown()).strip()
    name = title[0].to_text().strip() if title else ""
    return f"{name}\n\n{text}" if name and name not in text[: len(name) + 8] else text
