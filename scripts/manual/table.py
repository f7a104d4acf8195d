"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(map(_line, (heads, tuple("---" for _ in heads), *rows)))


def _line(cells: tuple[str, ...]) -> str:
    assert not any("|" in cell for cell in cells), "within code, web sites disagree on how it is written"
    return f"| {' | '.join(cells)} |\n"
