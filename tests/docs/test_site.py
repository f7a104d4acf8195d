"""The manual as a web site: it builds without a warning, and asks nothing of other hosts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, ROOT
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.thorough
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc=["']?(?P<src>[^"'\s>]+)"""
    r"""|<link\b[^>]*?\bhref=["']?(?P<href>[^"'\s>]+)"""
    r"""|url\(["']?(?P<url>[^"')]+)|@import\s+["'](?P<import>[^"']+)"""
)
"""What a browser loads by itself; links that people follow are not among it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manual")
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    built = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


def loaded(text: str) -> list[str]:
    return [found[found.lastgroup or 0] for found in _LOADED.finditer(text)]


def test_every_page_is_built(site: Path) -> None:
    assert {page.stem for page in DOCS.glob("*.md")} <= {page.stem for page in site.glob("*.html")}


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    files = [file for file in site.rglob("*") if file.suffix in (".html", ".css", ".svg")]
    targets = [target for file in files for target in loaded(file.read_text(encoding="utf-8"))]
    assert "./assets/images/favicon.png" in targets
    assert [target for target in targets if re.match(r"(?:\w+:)?//", target)] == []


def test_what_would_be_loaded_from_another_host_is_found() -> None:
    page = """<link rel="stylesheet" href="https://a.example/x.css"><script src=//b.example/y.js></script>
    <a href="https://c.example/">read</a> <style>@import 'https://d.example/z.css'</style>"""
    assert loaded(page) == ["https://a.example/x.css", "//b.example/y.js", "https://d.example/z.css"]


def test_every_page_can_be_found_by_its_search(site: Path) -> None:
    found = (site / "search.json").read_text(encoding="utf-8")
    assert [page.stem for page in DOCS.glob("*.md") if f"{page.stem}.html" not in found] == []
