"""Parts of a document, and its refusals."""

from __future__ import annotations

from typing import NamedTuple, Union

from openai_cpu_server.errors import InvalidRequest


class DocumentKind(NamedTuple):
    names: str
    extra: str
    """Extra of the package that reads it, or ""."""
    content: str


KINDS = (
    DocumentKind(
        "pdf",
        "",
        "numbered pages, rows of tables, form fields, notes, attached files; pages without text as pictures",
    ),
    DocumentKind("docx, docm", "documents", "text, tables, headers, footnotes, comments, charts"),
    DocumentKind("xlsx, xlsm, xlsb, xls, ods", "documents", "each sheet as CSV, comments, charts"),
    DocumentKind("pptx, pptm", "documents", "slides with their numbers, tables, notes, charts, comments"),
    DocumentKind("odt, odp", "documents", "text, tables, footnotes, annotations, headers"),
    DocumentKind("epub", "documents", "chapters in Markdown"),
    DocumentKind("html", "documents", "Markdown without scripts; without the extra the source"),
    DocumentKind("rtf", "documents", "text"),
    DocumentKind("ipynb", "", "cells and their outputs as text"),
    DocumentKind("eml", "", "head, text and attached files"),
    DocumentKind(
        "txt, csv, md, json, xml and other text",
        "",
        "the text, in the charset of its data URI, else UTF-8, UTF-16 or Windows-1252",
    ),
)
UNKNOWN = (
    "this is neither a PDF nor text nor another document that can be read "
    f"({', '.join(kind.names for kind in KINDS[1:-1])})"
)
MOST_ATTACHED = 100
"""Attached files and pictures in one place."""


class AttachedFile(NamedTuple):
    name: str
    data: bytes


DocumentBlock = Union[str, int, AttachedFile]
"""Text, the number of a pictured page, or a file within the document."""


def unreadable(why: str) -> InvalidRequest:
    return InvalidRequest(why, code="invalid_file")


def too_long(why: str) -> InvalidRequest:
    return InvalidRequest(why, code="file_too_large")


def not_shown(num_pictures: int) -> str:
    return f"[Not shown: {num_pictures} picture{'s' * (num_pictures > 1)}]"
