"""The README and the manual use plain English: constructions of other languages are found by their form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.docs.markdown import PAGES
from tests.test_house import FOREIGN_WORDS

GENERATED = {"options.md", "routes.md", "fields.md", "errors.md", "metrics.md"}
"""Pages made from texts of the package, which tests/test_house.py checks."""
NOT_REWRITTEN = {
    "answer-cache.md",
    "anthropic.md",
    "architecture.md",
    "batch-jobs.md",
    "benchmark.md",
    "deploy.md",
    "embeddings.md",
    "events.md",
    "faults.md",
    "gateways.md",
    "gpu.md",
    "llama-server.md",
    "mcp.md",
    "measurements.md",
    "monitoring.md",
    "ollama.md",
    "operations.md",
    "pictures.md",
    "ray.md",
    "reasoning.md",
    "responses.md",
    "scheduling.md",
    "simulation.md",
    "sound.md",
    "structured-output.md",
    "tuning.md",
    "usage.md",
}
"""Pages that still have such constructions. A page leaves this list when it is rewritten."""
TITLES = ("heading_open", "th_open")
CODE = "`code`"


def texts(markdown: str) -> Iterator[str]:
    """Paragraphs, items of lists and cells of tables, without headings and heads of columns."""
    before = ""
    for token in MarkdownIt().enable("table").parse(markdown):
        if token.type == "inline" and before not in TITLES:
            parts = token.children or ()
            words = (CODE if part.type == "code_inline" else part.content or " " for part in parts)
            yield " ".join("".join(words).split())
        before = token.type


def foreign(markdown: str) -> list[str]:
    found = ((text, FOREIGN_WORDS.search(text)) for text in texts(markdown))
    return [text[max(0, match.start() - 30) : match.end() + 50] for text, match in found if match is not None]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_sentence_has_a_noun_as_its_subject_and_says_is_not_a(page: Path) -> None:
    if page.name not in GENERATED | NOT_REWRITTEN:
        assert foreign(page.read_text("utf-8")) == []


def test_constructions_are_found_in_sentences_and_cells_and_not_in_titles_and_questions() -> None:
    refused = (
        "A page is no book.",
        "It ends. Who\nstays pays.",
        "- **What it costs**: much.",
        "Nobody reads `x`.",
    )
    assert [text for text in refused if not foreign(text)] == []
    assert foreign("| Page |\n| --- |\n| What a page has |") != []
    allowed = ("There is no book.", "It is no longer one.", "## What it is", "Who is it for?", "`is no`")
    assert [text for text in (*allowed, "| What |\n| --- |\n| a page |") if foreign(text)] == []
    assert {page.name for page in PAGES} >= GENERATED | NOT_REWRITTEN
