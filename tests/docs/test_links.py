"""Links lead somewhere, and every page can be reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, PAGES, README, ROOT, anchors, links

_FOREIGN = ("http://", "https://", "mailto:")


def leads(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    found = (page.parent / path).resolve() if path else page
    return found.is_file() and ROOT in found.parents and (not anchor or anchor in anchors(found))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    ours = [target for target in links(page) if not target.startswith(_FOREIGN)]
    assert [target for target in ours if not leads(page, target)] == []
    assert not leads(page, "no-such-page.md")
    assert not leads(page, "#no-such-heading")


def test_the_table_of_contents_and_the_readme_name_every_page() -> None:
    pages = sorted(page.name for page in DOCS.glob("*.md"))
    assert sorted(re.findall(r'= "([\w-]+\.md)"', (ROOT / "zensical.toml").read_text())) == pages
    linked = {target.partition("#")[0] for target in links(README)}
    assert {f"docs/{name}" for name in pages} - linked <= {"docs/index.md"}
