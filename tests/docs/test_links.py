"""Targets of links exist, and every page can be reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, PAGES, README, ROOT, anchors, links

_EXTERNAL = ("http://", "https://", "mailto:")


def exists(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return file.is_file() and ROOT in file.parents and (not anchor or anchor in anchors(file))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_name_files_and_headings_that_exist(page: Path) -> None:
    internal = [target for target in links(page) if not target.startswith(_EXTERNAL)]
    assert [target for target in internal if not exists(page, target)] == []
    assert not exists(page, "no-such-page.md")
    assert not exists(page, "#no-such-heading")


def test_the_table_of_contents_and_the_readme_name_every_page() -> None:
    pages = sorted(page.name for page in DOCS.glob("*.md"))
    assert sorted(re.findall(r'= "([\w-]+\.md)"', (ROOT / "zensical.toml").read_text())) == pages
    linked = {target.partition("#")[0] for target in links(README)}
    assert {f"docs/{name}" for name in pages} - linked <= {"docs/index.md"}
