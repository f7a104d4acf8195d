"""The README and the manual use plain English: constructions of other languages are found by their form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.docs.markdown import PAGES
from tests.test_house import FOREIGN_WORDS

GENERATED = {"options.md", "routes.md", "fields.md", "errors.md", "metrics.md", "files.md"}
"""Pages made from texts of the package, which tests/test_house.py checks."""
TITLES = ("heading_open", "th_open")
CODE = "`code`"


def texts(markdown: str) -> Iterator[str]:
    """Yield paragraphs, list items and cells. Headings, heads of columns and texts of links are titles."""
    before = ""
    for token in MarkdownIt().enable("table").parse(markdown):
        if token.type == "inline" and before not in TITLES:
            yield " ".join("".join(words(token.children or ())).split())
        before = token.type


def words(parts: Iterable[Token]) -> Iterator[str]:
    is_link = False
    for part in parts:
        if part.type in {"link_open", "link_close"}:
            is_link = part.type == "link_open"
            yield "link" if is_link else ""
        elif not is_link:
            yield CODE if part.type == "code_inline" else part.content or " "


def foreign(markdown: str) -> list[str]:
    found = ((text, FOREIGN_WORDS.search(text)) for text in texts(markdown))
    return [text[max(0, match.start() - 30) : match.end() + 50] for text, match in found if match is not None]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_words_of_the_dialect(page: Path) -> None:
    if page.name not in GENERATED:
        assert foreign(page.read_text("utf-8")) == []


def test_words_of_the_dialect_are_found_in_sentences_and_cells_only() -> None:
    refused = (
        "A page is no book.",
        "It ends. Who\nstays pays.",
        "- **What it costs**: much.",
        "Nobody reads `x`.",
        "It waits, for the engine is busy.",
    )
    assert [text for text in refused if not foreign(text)] == []
    assert foreign("| Page |\n| --- |\n| What a page has |") != []
    allowed = (
        "There is no book.",
        "It is no longer one.",
        "It is off, for clients that are older.",
        "## What it is",
        "Who is it for?",
        "`is no`",
        "[What it is](x.md)",
    )
    assert [text for text in (*allowed, "| What |\n| --- |\n| a page |") if foreign(text)] == []
    assert {page.name for page in PAGES} >= GENERATED
