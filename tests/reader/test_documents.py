"""Text of documents of all kinds. The samples are in `tests/documents.py`."""

from __future__ import annotations

import pytest

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.reader.documents.pdf import rendered_page
from openai_cpu_server.reader.documents.read import document_parts
from tests.documents import Sample, samples, scanned

SAMPLES = samples()


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.name for sample in SAMPLES])
def test_a_document_has_its_text_and_the_numbers_of_its_picture_pages(sample: Sample) -> None:
    if sample.refusal:
        with pytest.raises(InvalidRequest, match=sample.refusal):
            document_parts(sample.data, most_chars=100_000, charset=sample.charset)
        return
    parts = document_parts(sample.data, most_chars=100_000, charset=sample.charset).parts
    text, at = "\n\n".join(part for part in parts if isinstance(part, str)), 0
    for expected in sample.texts:
        assert expected in text[at:]
        at = text.index(expected, at) + len(expected)
    assert tuple(part for part in parts if isinstance(part, int)) == sample.pages
    assert sample.lacks not in text


def test_there_are_sixty_documents_with_different_names() -> None:
    assert len({sample.name for sample in SAMPLES}) == len(SAMPLES) >= 60


def test_a_page_that_is_a_picture_is_shown_large_enough_to_read() -> None:
    page = rendered_page(scanned(None), 1, most_pixels=10_000_000)
    assert (page.size.width, page.size.height) == (1152, 1536)
    small = rendered_page(scanned(None), 1, most_pixels=100_000).size
    assert 90_000 < small.width * small.height <= 100_000
    assert max(abs(seen - meant) for seen, meant in zip(page.content[:3], (200, 220, 240), strict=True)) < 3


def test_a_text_that_is_too_long_is_refused_with_the_limit() -> None:
    with pytest.raises(InvalidRequest, match="more than 10 characters") as refusal:
        document_parts(b"a" * 11, most_chars=10)
    assert refusal.value.code == "file_too_large"


@pytest.mark.parametrize("comment", ["<!---->", "<!-- a -->\n"])
def test_comments_without_html_are_text(comment: str) -> None:
    """A comment could end where a later one ends, and a pattern once tried all ways."""
    text = comment * 300 + "x"
    assert document_parts(text.encode(), most_chars=10_000).parts == (text,)
    assert document_parts(f"{comment}<html>x".encode(), most_chars=10_000).parts == ("x",)
