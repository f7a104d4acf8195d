"""The pages of the repository and their content."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.glob("*.md"))]


@functools.cache
def tokens(page: Path) -> list[Token]:
    """Return all tokens of a page, including those within lines."""
    outer = MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
    return [part for token in outer for part in (token, *(token.children or ()))]


def links(page: Path) -> list[str]:
    """Return the targets of the page's links and pictures."""
    targets = (token.attrGet("href") or token.attrGet("src") for token in tokens(page))
    return [str(target) for target in targets if target]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, formed as on GitHub and on the manual's site."""
    found, in_heading = set(), False
    for token in tokens(page):
        if token.type == "inline" and in_heading:
            words = "".join(part.content for part in token.children or ())
            found.add(re.sub(r"[^\w\- ]", "", words).strip().lower().replace(" ", "-"))
        in_heading = token.type == "heading_open"
    return found


def blocks(page: Path, language: str) -> list[str]:
    return [token.content for token in tokens(page) if token.type == "fence" and token.info == language]


def code(page: Path) -> Iterator[str]:
    yield from (token.content for token in tokens(page) if token.type in ("fence", "code_inline"))
