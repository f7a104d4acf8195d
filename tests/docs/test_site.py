"""The manual as a web site: it builds without a warning, and loads nothing from other hosts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, ROOT

pytestmark = pytest.mark.thorough
_REFERENCE = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc=["']?([^"'\s>]+)|<link\b[^>]*?\bhref=["']?([^"'\s>]+)"""
    r"""|url\(["']?([^"')]+)|@import\s+["']([^"']+)"""
)
"""References that a browser loads by itself, not the links that people follow."""


def references(text: str) -> list[str]:
    return [found[found.lastindex or 0] for found in _REFERENCE.finditer(text)]


def test_every_page_is_built_can_be_searched_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    site, names = tmp_path / "site", {f"{page.stem}.html" for page in DOCS.glob("*.md")}
    assert names <= {page.name for page in site.glob("*.html")}
    index = (site / "search.json").read_text(encoding="utf-8")
    assert [name for name in names if name not in index] == []
    page = """<link rel="stylesheet" href="https://a.example/x.css"><script src=//b.example/y.js></script>
    <a href="https://c.example/">read</a> <style>@import 'https://d.example/z.css'</style>"""
    assert references(page) == ["https://a.example/x.css", "//b.example/y.js", "https://d.example/z.css"]
    files = [file for file in site.rglob("*") if file.suffix in (".html", ".css", ".svg")]
    targets = [target for file in files for target in references(file.read_text(encoding="utf-8"))]
    assert "./assets/images/favicon.png" in targets
    assert [target for target in targets if re.match(r"(?:\w+:)?//", target)] == []
