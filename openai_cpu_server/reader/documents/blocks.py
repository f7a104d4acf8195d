"""Parts of a document, and its refusals."""

from __future__ import annotations

from typing import NamedTuple, Union

from openai_cpu_server.errors import InvalidRequest

UNKNOWN = (
    "this is neither a PDF nor text nor another document that can be read "
    "(docx, xlsx, pptx, odt, ods, odp, epub, html, ipynb, rtf, eml)"
)
MOST_NAMED = 100
"""Attached files and pictures of one place that are looked at."""


class AttachedFile(NamedTuple):
    name: str
    data: bytes


Block = Union[str, int, AttachedFile]
"""Text, the number of a page that is a picture, or a file within the document."""


def unreadable(why: str) -> InvalidRequest:
    return InvalidRequest(why, code="invalid_file")


def too_long(why: str) -> InvalidRequest:
    return InvalidRequest(why, code="file_too_large")


def not_shown(num_pictures: int) -> str:
    return f"[Not shown: {num_pictures} picture{'s' * (num_pictures > 1)}]"
