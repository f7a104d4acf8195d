"""Links lead somewhere, and every page can be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, PAGES, ROOT, anchors, links

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

_FOREIGN = ("http://", "https://", "mailto:")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    assert [
        target for target in links(page) if not target.startswith(_FOREIGN) and not leads(page, target)
    ] == []


def leads(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    found = (page.parent / path).resolve() if path else page
    return found.is_file() and ROOT in found.parents and (not anchor or anchor in anchors(found))


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One heading\n")
    assert not leads(page, "other.md")
    assert not leads(page, "#another-heading")
    assert anchors(page) == {"one-heading"}


def test_the_table_of_contents_names_every_page_once() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert sorted(named(nav)) == sorted(page.name for page in DOCS.glob("*.md"))


def named(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav if isinstance(nav, list) else list(nav.values()) if isinstance(nav, dict) else []
    return [name for part in parts for name in named(part)]


def test_the_readme_leads_to_every_page_but_the_front_one() -> None:
    pages = {page.relative_to(ROOT).as_posix() for page in DOCS.glob("*.md")} - {
        "docs/index.md",
        "docs/benchmark.md",
    }
    assert pages <= {target.partition("#")[0] for target in links(ROOT / "README.md")}
