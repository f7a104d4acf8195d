"""Recognition of documents by content, and their text."""

from __future__ import annotations

import codecs
import contextlib
import email
import email.policy
import json
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.reader.documents.archives import archive_blocks, markdown, workbook_blocks
from openai_cpu_server.reader.documents.blocks import (
    MOST_ATTACHED,
    UNKNOWN,
    AttachedFile,
    DocumentBlock,
    not_shown,
    too_long,
    unreadable,
)
from openai_cpu_server.reader.documents.pdf import opened_pdf, pdf_blocks
from openai_cpu_server.reader.messages import DocumentRead

_PDF, _PDF_WITHIN = b"%PDF-", 1024
_DEEPEST = 2
"""Depth of nested attachments."""


def document_parts(data: bytes, *, most_chars: int, charset: str = "") -> DocumentRead:
    """`charset`: that of plain text, as the client names it. Raises InvalidRequest."""
    parts, left = list[str | int](), most_chars
    for block in _flat(_contained(_blocks(data, charset)), 0):
        left -= len(block) if isinstance(block, str) else 0
        if left < 0:
            raise too_long(f"its text has more than {most_chars} characters")
        parts.append(block)
    return DocumentRead(tuple(parts))


def _flat(blocks: Iterator[DocumentBlock], depth: int) -> Iterator[str | int]:
    """Insert the text of attached files, or why they cannot be read."""
    for block in blocks:
        if not isinstance(block, AttachedFile):
            yield block
            continue
        yield f"[Attached file: {block.name}]"
        if depth >= _DEEPEST:
            yield "[It is not read, because it is attached to an attached file.]"
            continue
        try:
            for inner in _flat(_contained(_blocks(block.data, "")), depth + 1):
                yield f"[Page {inner} is a picture, which is not shown.]" if isinstance(inner, int) else inner
        except InvalidRequest as error:
            yield f"[It cannot be read: {error}.]"


def _contained(blocks: Iterator[DocumentBlock]) -> Iterator[DocumentBlock]:
    try:
        yield from blocks
    except (InvalidRequest, MemoryError, RecursionError):
        raise
    except ImportError as error:
        message = f"this kind of document needs the server's extra 'documents' ({error.name} is missing)"
        raise unreadable(message) from None
    except BaseException as error:  # libraries raise many kinds, and their next versions may raise others
        is_panic = type(error).__name__ == "PanicException"  # of a library in Rust
        if not isinstance(error, Exception) and not is_panic:
            raise
        raise unreadable("the document is damaged") from None


def _blocks(data: bytes, charset: str) -> Iterator[DocumentBlock]:
    reads: Callable[[bytes], Iterator[DocumentBlock]] | None = None
    if data.lstrip()[: len(_PDF)] == _PDF:
        reads = pdf_blocks
    elif data.startswith(b"PK\x03\x04"):
        reads = archive_blocks
    elif data.startswith(b"\xd0\xcf\x11\xe0"):
        reads = _compound
    elif data.startswith(b"{\\rtf"):
        reads = _rtf
    elif _HTML.match(data[:4096]):
        reads = _html
    elif _MAIL.match(data) and _MAIL_ALSO.search(data[:16_384]):
        reads = _mail
    elif data.lstrip()[:1] == b"{" and b'"nbformat"' in data and (notebook := _notebook(data)):
        yield from notebook
        return
    elif _PDF in data[:_PDF_WITHIN]:
        with contextlib.suppress(InvalidRequest):
            opened_pdf(data).close()
            reads = pdf_blocks
    if reads is None:
        yield _plain_text(data, charset)
    else:
        yield from reads(data)


# -- plain text --------------------------------------------------------------------------------------------

_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_NO_CHARSETS = frozenset(("idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape"))
"""Python codecs that no client means, some of them slow."""


def _plain_text(data: bytes, charset: str) -> str:
    text = _decoded(data, charset).rstrip("\x1a\0")  # DOS ended files with the first
    controls = len(_CONTROLS.findall(text))
    if controls > 1 + len(text) // 100:
        raise unreadable(UNKNOWN)
    return _CONTROLS.sub("\ufffd", text.replace("\x0b", "\n")) if controls or "\x0b" in text else text


def _decoded(data: bytes, charset: str) -> str:
    if charset:
        try:
            if codecs.lookup(charset).name in _NO_CHARSETS:
                raise LookupError
            return data.decode(charset, "replace").removeprefix("\ufeff")
        except (LookupError, ValueError):
            raise unreadable(f"the charset '{charset[:40]}' is not known") from None
    mark = next((mark for mark in _BYTE_ORDER_MARKS if data.startswith(mark)), None)
    try:
        return data.decode("utf-8" if mark is None else _BYTE_ORDER_MARKS[mark])
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


# -- others ------------------------------------------------------------------------------------------------

_HTML = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--(?:(?!-->).){0,2000}-->\s*)*<(?:!doctype\s+html|html)\b",
    re.IGNORECASE | re.DOTALL,
)
_MAIL = re.compile(rb"(?:From |[A-Za-z][A-Za-z-]{1,40}:[ \t])")
_MAIL_ALSO = re.compile(
    rb"^(?:MIME-Version|Message-ID):[ \t].*?^(?:From|Subject):[ \t]|^(?:From|Subject):[ \t]"
    rb".*?^(?:MIME-Version|Message-ID):[ \t]",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)


def _html(data: bytes) -> Iterator[str]:
    try:
        yield markdown(data)
    except ImportError:
        yield _plain_text(data, "")


def _rtf(data: bytes) -> Iterator[str]:
    from striprtf.striprtf import rtf_to_text

    yield str(rtf_to_text(data.decode("latin-1"), errors="replace")).strip()
    if num_pictures := data.count(rb"\pict"):
        yield not_shown(num_pictures)


def _compound(data: bytes) -> Iterator[str]:
    """OLE2: Office until 2003, and encrypted files."""
    for stream, why in (
        ("EncryptedPackage", "the document is encrypted"),
        ("WordDocument", "this is a Word document of the old kind (.doc), which can be saved as .docx"),
        ("PowerPoint Document", "this is a presentation of the old kind (.ppt), which can be saved as .pptx"),
        ("__substg1.0_", "this is a message of Outlook (.msg), which can be saved as .eml"),
    ):
        if stream.encode("utf-16-le") in data:
            raise unreadable(why)
    yield from workbook_blocks(data)


_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def _notebook(data: bytes) -> list[str] | None:
    """Return the cells, or None for other JSON."""
    with contextlib.suppress(ValueError, RecursionError, AttributeError, TypeError, LookupError):
        book = json.loads(data)
        cells = book.get("cells") or [cell for sheet in book["worksheets"] for cell in sheet["cells"]]
        language = (book.get("metadata") or {}).get("language_info", {}).get("name", "")
        return [
            block for number, cell in enumerate(cells, 1) for block in _notebook_cell(number, cell, language)
        ]
    return None


def _notebook_cell(number: int, cell: dict[str, Any], language: str) -> Iterator[str]:
    source = _joined(cell.get("source") or cell.get("input"))
    is_code = cell.get("cell_type") == "code"
    yield f"[Cell {number}]\n" + (f"```{language}\n{source}\n```" if is_code else source)
    for output in cell.get("outputs") or ():
        shown = output.get("data") or output
        text = _joined(output.get("text") or shown.get("text/plain") or output.get("traceback"))
        pictures = [kind for kind in shown if kind.startswith("image/") or kind in ("png", "jpeg", "svg")]
        picture = "[picture]" if pictures else ""
        if lines := [*filter(None, (_ANSI.sub("", text).rstrip(), picture))]:
            yield "\n".join(["[Output]", *lines])


def _joined(lines: object) -> str:
    if isinstance(lines, list):
        return "".join(map(str, lines))
    return lines if isinstance(lines, str) else ""


def _mail(data: bytes) -> Iterator[DocumentBlock]:
    message: Any = email.message_from_bytes(data, policy=email.policy.default)
    shown = ("From", "To", "Cc", "Date", "Subject")
    yield "\n".join(f"{name}: {message[name]}" for name in shown if message[name])
    body = message.get_body(("plain", "html"))
    if body is not None:
        content = body.get_content()
        is_html = body.get_content_type() == "text/html"
        yield from _html(content.encode()) if is_html else [content.strip()]
    for part in islice(message.iter_attachments(), MOST_ATTACHED):
        content = part.get_content()
        if part.get_content_type() == "message/rfc822":
            content = bytes(content)
        raw = content if isinstance(content, bytes) else str(content).encode(errors="surrogateescape")
        yield AttachedFile(part.get_filename() or part.get_content_type(), raw)
