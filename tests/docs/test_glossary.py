"""The glossary of docs/contributing.md names what exists, each term once."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_TERMS = 40


def test_each_term_stands_once_and_its_name_is_defined_where_it_says() -> None:
    text = (ROOT / "docs/contributing.md").read_text("utf-8")
    glossary = text.partition("## Glossary")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w ]+) \| .+ \| `(\w+)` \| `([\w/.]+)` \|$", glossary, re.MULTILINE)
    assert len(rows) == glossary.count("\n| ") - 2
    assert len({term for term, _, _ in rows}) == len(rows) <= MOST_TERMS
    for _, name, file in rows:
        source = (ROOT / "openai_cpu_server" / file).read_text("utf-8")
        assert re.search(rf"^class {name}\b", source, re.MULTILINE), f"{name} is not defined in {file}"
