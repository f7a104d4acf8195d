"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(map(_line, (heads, tuple("---" for _ in heads), *rows)))


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"
